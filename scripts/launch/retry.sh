#!/usr/bin/env bash
# Runs a command that trains; after a failure again, from the newest checkpoint.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/launch/retry.sh [OPTIONS] -- COMMAND...

COMMAND starts train, by itself or through mpirun or srun, with an --out-dir. When it fails, it is
run again after a pause: with --resume auto and without --overwrite once the run has begun, that is,
has written config.toml to its folder; before that, as it was.

  --retries N      how many times at most (default 3)
  --pause SECONDS  before each of them (default 30)
  --pass-as NAME   pass signals on as this one; for mpirun: USR2
  --dry-run        print the first command and the later ones, and stop

It ends with the status of the last command: after success; after N retries; when a signal has
stopped the run (129, 130, 138, 140, 143), which then has a checkpoint; and when the first command
ends with status 2 (options, files or devices are wrong) or cannot be started (126, 127).

Signals that stop a run are passed on: INT, TERM, HUP (as TERM), USR1 and USR2. Open MPI's mpirun
kills its processes a second after INT, TERM and HUP, but not after USR2.
END
}

script=retry.sh
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source-path=SCRIPTDIR source=settings.bash
. "$root/scripts/launch/settings.bash"

retries=3 pause=30 pass_as='' dry_run=false
while [ $# -gt 0 ]; do
  case $1 in
    --retries) retries=${2-}; [ "$retries" = 0 ] || expect_count "$1" "$retries"; shift 2 ;;
    --pass-as)
      pass_as=${2-}
      [[ $pass_as =~ ^[A-Z][A-Z0-9]*$ ]] || fail "--pass-as: expected a signal, got '$pass_as'"
      shift 2 ;;
    --pause) pause=${2-}; expect_seconds "$1" "$pause"; shift 2 ;;
    --dry-run) dry_run=true; shift ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) fail "expected -- before the command, got $1 (see --help)" ;;
  esac
done
[ $# -gt 0 ] || fail "expected a command after -- (see --help)"
first=("$@") again=() folder='' previous='' has_resume=false
for word in "$@"; do
  case $previous in --out[-_]dir) folder=$word ;; esac
  previous=$word
  case $word in
    --overwrite | --overwrite=*) continue ;;
    --out[-_]dir=*) folder=${word#*=} ;;
    --resume | --resume=*) has_resume=true ;;
  esac
  again+=("$word")
done
[ -n "$folder" ] || fail "expected --out-dir in the command, so that --resume auto finds the run"
$has_resume || again+=(--resume auto)

if $dry_run; then
  show "${first[@]}"
  show "${again[@]}"
  exit 0
fi

child='' signalled=false heard=false
pass_on() {
  signalled=true heard=true
  [ -z "$child" ] || kill -s "${pass_as:-$1}" "$child" 2>/dev/null || true
}
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM HUP
trap 'pass_on USR1' USR1
trap 'pass_on USR2' USR2

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

# Which config.toml lies in the run's folder. Another run's must not be gone on with.
described() { stat -c '%i %y' "$folder/config.toml" 2>/dev/null || true; }
before=$(described)

for ((attempt = 0; ; ++attempt)); do
  if [ "$(described)" = "$before" ]; then run "${first[@]}"; else run "${again[@]}"; fi
  case $status in 0 | 129 | 130 | 138 | 140 | 143) exit "$status" ;; esac
  if $signalled || [ "$retries" = 0 ]; then exit "$status"; fi
  case $attempt:$status in
    0:2) hopeless="options, files or devices are wrong" ;;
    0:126 | 0:127) hopeless="the command could not be started" ;;
    *) hopeless='' ;;
  esac
  if [ -n "$hopeless" ]; then
    echo "$script: status $status: $hopeless; not tried again" >&2
    exit "$status"
  fi
  if [ "$attempt" = "$retries" ]; then
    echo "$script: status $status after $retries retries" >&2
    exit "$status"
  fi
  echo "$script: status $status; retry $((attempt + 1)) of $retries in $pause s" >&2
  run sleep "$pause"
  ! $signalled || exit "$status"
done
