#!/usr/bin/env bash
# Runs a command that trains; after a failure again, from the newest checkpoint.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/launch/retry.sh [--retries N] [--pause SECONDS] [--dry-run] -- COMMAND...

COMMAND starts train, by itself or through mpirun or srun, with an --out-dir. When it fails, it is
run again with --resume auto, and without --overwrite, after a pause.

  --retries N      how many times at most (default 3)
  --pause SECONDS  before each of them (default 30)
  --dry-run        print the first command and the later ones, and stop

It ends with the status of the last command: after success; after N retries; when a signal has
stopped the run (130, 143), which then has a checkpoint; and when the first command ends with status
2: it did not begin to train, so options, files or the start-up are wrong. INT, TERM and HUP are
passed on once (HUP as TERM). To stop a run under mpirun, signal this script: mpirun itself ends
with status 1 at a signal, as after a failure.
END
}

script=retry.sh
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source-path=SCRIPTDIR source=settings.bash
. "$root/scripts/launch/settings.bash"

retries=3 pause=30 dry_run=false
while [ $# -gt 0 ]; do
  case $1 in
    --retries) retries=${2-}; expect_count "$1" "$retries"; shift 2 ;;
    --pause)
      pause=${2-}
      [[ $pause =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "--pause: expected seconds, got '$pause'"
      shift 2 ;;
    --dry-run) dry_run=true; shift ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) fail "expected -- before the command, got $1 (see --help)" ;;
  esac
done
[ $# -gt 0 ] || fail "expected a command after -- (see --help)"
first=("$@") again=() has_folder=false has_resume=false
for word in "$@"; do
  case $word in
    --overwrite | --overwrite=*) continue ;;
    --out[-_]dir | --out[-_]dir=*) has_folder=true ;;
    --resume | --resume=*) has_resume=true ;;
  esac
  again+=("$word")
done
$has_folder || fail "expected --out-dir in the command, so that --resume auto finds the run"
$has_resume || again+=(--resume auto)

if $dry_run; then
  show "${first[@]}"
  show "${again[@]}"
  exit 0
fi

child='' signalled=false heard=false
pass_on() {
  signalled=true heard=true
  [ -z "$child" ] || kill -s "$1" "$child" 2>/dev/null || true
}
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM HUP

# A process group of its own: a Ctrl-C must not reach the command twice, as a second signal ends
# train without a checkpoint.
set -m
run() {
  "$@" </dev/null &
  child=$!
  # A trapped signal ends `wait` early.
  heard=true
  while $heard; do
    heard=false status=0
    wait "$child" || status=$?
  done
  child=''
}

for ((attempt = 0; ; ++attempt)); do
  if [ "$attempt" = 0 ]; then run "${first[@]}"; else run "${again[@]}"; fi
  if [ "$status" = 0 ] || $signalled || [ "$status" = 130 ] || [ "$status" = 143 ]; then
    exit "$status"
  fi
  if [ "$attempt" = 0 ] && [ "$status" = 2 ]; then
    echo "$script: status 2, before training began; not tried again" >&2
    exit 2
  fi
  if [ "$attempt" = "$retries" ]; then
    echo "$script: status $status after $retries retries" >&2
    exit "$status"
  fi
  echo "$script: status $status; retry $((attempt + 1)) of $retries in $pause s" >&2
  run sleep "$pause"
  ! $signalled || exit "$status"
done
