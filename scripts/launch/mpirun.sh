#!/usr/bin/env bash
# Starts a run with Open MPI, on this machine or on those of a host file.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/launch/mpirun.sh [OPTIONS] CONFIG [TRAIN-OPTIONS]

CONFIG is a name in configs/, such as gpt2-124M or gpt3-1.3B, or a TOML file; TRAIN-OPTIONS go to
train. The run's folder is runs/CONFIG unless --out-dir says otherwise.

  --ranks N       processes (default: the host file's slots, else one for each GPU of this machine)
  --hosts FILE    host file of mpirun, with lines such as: node01 slots=8
  --retries N     after a failure go on from the newest checkpoint, at most N times (default 0)
  --pause SECONDS before each of them (default 30)
  --dry-run       print the command and stop

INT, TERM, HUP, USR1 and USR2, sent to this script, stop the run with a checkpoint. Where a script has started
this one with &, send TERM: bash has such a process ignore INT.

Environment: LLMC_TRAIN, the program (default: build/cuda-nccl/apps/train, then build/cpu-mpi).
LLMC_MPIRUN, mpirun and options for it (default: mpirun), such as "mpirun --oversubscribe", which
allows more processes than cores. The variables NCCL_*,
LLMC_COMM_TOKEN, CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS are passed on where they are set;
NCCL_NVLS_ENABLE is 0 unless set.
END
}

script=mpirun.sh
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source-path=SCRIPTDIR source=settings.bash
. "$root/scripts/launch/settings.bash"

ranks='' hosts='' retries=0 pause=30 dry_run=false
while [ $# -gt 0 ]; do
  case $1 in
    --ranks) ranks=${2-}; expect_count "$1" "$ranks"; shift 2 ;;
    --hosts)
      hosts=${2-}
      [ -f "$hosts" ] || fail "--hosts: expected a file, got '$hosts'"
      shift 2 ;;
    --retries) retries=${2-}; expect_count "$1" "$retries"; shift 2 ;;
    --pause) pause=${2-}; expect_seconds "$1" "$pause"; shift 2 ;;
    --dry-run) dry_run=true; shift ;;
    --help | -h) usage; exit 0 ;;
    -*) fail "unknown option $1 (see --help)" ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || fail "expected the name of a configuration (see --help)"
config=$(find_config "$root" "$1")
shift
train=$(find_train "$root" cuda-nccl cpu-mpi)
[ -n "$ranks$hosts" ] || ranks=$(count_gpus --ranks)

mpirun=${LLMC_MPIRUN:-mpirun}
read -r -a command <<<"$mpirun"
[ -z "$ranks" ] || command+=(-np "$ranks")
[ -z "$hosts" ] || command+=(--hostfile "$hosts")
# Threads and GPUs are dealt out by train; bound to one core each, processes could not use theirs.
command+=(--bind-to none)
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
for name in "${!NCCL_@}" LLMC_COMM_TOKEN CUDA_VISIBLE_DEVICES OMP_NUM_THREADS; do
  [ -z "${!name:-}" ] || command+=(-x "$name")
done
command+=("$train" --config "$config")
case " $* " in
  *" --out"[-_]"dir"[\ =]*) ;;
  *) name=${config##*/}; command+=(--out-dir "runs/${name%.toml}") ;;
esac
command=("$root/scripts/launch/retry.sh" --retries "$retries" --pause "$pause" --pass-as USR2 --
  "${command[@]}" "$@")
if $dry_run; then
  show env "NCCL_NVLS_ENABLE=$NCCL_NVLS_ENABLE" "${command[@]}"
  exit 0
fi
launcher=${mpirun%% *}
command -v "$launcher" >/dev/null ||
  fail "expected $launcher in PATH: install Open MPI (scripts/setup.sh --mpi) or set LLMC_MPIRUN"
if [ "$(id -u)" = 0 ] && [ -z "${LLMC_MPIRUN:-}${OMPI_ALLOW_RUN_AS_ROOT:-}" ] &&
  [[ $(mpirun --version 2>&1) == *"Open MPI"* ]]; then
  fail "Open MPI refuses to run as root: be another user, or export OMPI_ALLOW_RUN_AS_ROOT=1" \
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
fi
exec "${command[@]}"
