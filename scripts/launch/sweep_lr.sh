#!/usr/bin/env bash
# Trains with several learning rates, one run on each GPU at a time, and prints the best.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/launch/sweep_lr.sh [OPTIONS] CONFIG RATE... [-- TRAIN-OPTIONS]

CONFIG is a name in configs/, such as gpt2-124M, or a TOML file. Each run's folder is OUT/lr-RATE,
with what it prints in OUT/lr-RATE.txt. The table at the end goes by the last validation loss in
log.jsonl, and without any by the mean of the last 20 training losses. Into folders that hold runs,
write -- --resume auto or -- --overwrite.

  --gpus LIST  numbers of GPUs, such as 0,2,3 (default: all of this machine); a number that occurs
               twice gets two runs at a time; on CPUs: 0
  --out OUT    folder (default: runs/sweep-CONFIG)
  --dry-run    print the commands and stop

Environment: LLMC_TRAIN, the program (default: build/cuda-release/apps/train, then cuda-nccl,
cpu-release and cpu-mpi). The status is 1 where a run failed. A signal ends all of them.
END
}

script=sweep_lr.sh
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source-path=SCRIPTDIR source=settings.bash
. "$root/scripts/launch/settings.bash"

gpus='' out='' dry_run=false
while [ $# -gt 0 ]; do
  case $1 in
    --gpus)
      gpus=${2-}
      [[ $gpus =~ ^[0-9]+(,[0-9]+)*$ ]] || fail "--gpus: expected numbers such as 0,1, got '$gpus'"
      shift 2 ;;
    --out) out=${2-}; [ -n "$out" ] || fail "--out: expected a folder"; shift 2 ;;
    --dry-run) dry_run=true; shift ;;
    --help | -h) usage; exit 0 ;;
    -*) fail "unknown option $1 (see --help)" ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || fail "expected the name of a configuration (see --help)"
config=$(find_config "$root" "$1")
shift
rates=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [[ $1 =~ ^[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?$ ]] || fail "expected a learning rate, got '$1'"
  [[ " ${rates[*]} " != *" $1 "* ]] || fail "expected each learning rate once, got $1 twice"
  rates+=("$1")
  shift
done
[ ${#rates[@]} -gt 0 ] || fail "expected learning rates after the configuration (see --help)"
[ $# = 0 ] || shift
train=$(find_train "$root" cuda-release cuda-nccl cpu-release cpu-mpi)
if [ -z "$gpus" ]; then
  count=$(count_gpus --gpus)
  gpus=$(seq -s, 0 $((count - 1)))
fi
IFS=, read -r -a gpus <<<"$gpus"
name=${config##*/}
out=${out:-runs/sweep-${name%.toml}}

if $dry_run; then
  for ((i = 0; i < ${#rates[@]}; ++i)); do
    show env "CUDA_VISIBLE_DEVICES=${gpus[i % ${#gpus[@]}]}" "$train" --config "$config" \
      --lr "${rates[i]}" --out-dir "$out/lr-${rates[i]}" "$@"
  done
  exit 0
fi

running=()             # processes, by place in `gpus`
declare -A rate_of=()  # of a process
failed=()
stop() {
  trap '' INT TERM HUP
  [ ${#running[@]} = 0 ] || kill -TERM "${running[@]}" 2>/dev/null || true
  wait
  echo "$script: stopped; -- --resume auto goes on" >&2
  exit 143
}
trap stop INT TERM HUP

# Waits for a run to end and leaves its place in `free`.
wait_for_one() {
  local place pid='' status=0
  while [ -z "$pid" ]; do
    for place in "${!running[@]}"; do
      kill -0 "${running[place]}" 2>/dev/null || pid=${running[place]} free=$place
    done
    [ -n "$pid" ] || wait -n || true
  done
  unset "running[$free]"
  wait "$pid" || status=$?
  [ "$status" != 0 ] || return 0
  local rate=${rate_of[$pid]}
  failed+=("$rate")
  echo "$script: lr $rate has status $status: $(tail -n 1 "$out/lr-$rate.txt")" >&2
}

mkdir -p "$out"
# Process groups of their own: a Ctrl-C must not reach the runs twice.
set -m
next=0
for rate in "${rates[@]}"; do
  if [ "$next" -lt ${#gpus[@]} ]; then free=$next next=$((next + 1)); else wait_for_one; fi
  CUDA_VISIBLE_DEVICES=${gpus[free]} "$train" --config "$config" --lr "$rate" \
    --out-dir "$out/lr-$rate" "$@" </dev/null >"$out/lr-$rate.txt" 2>&1 &
  running[free]=$! rate_of[$!]=$rate
  echo "lr $rate (CUDA_VISIBLE_DEVICES=${gpus[free]}): $out/lr-$rate.txt"
done
while [ ${#running[@]} -gt 0 ]; do wait_for_one; done

# "KIND LOSS" of a run, or nothing. A loss that is no number is null in the log.
result() {
  LC_ALL=C awk '
    function loss() {
      return match($0, /"loss":[-+0-9.eE]+/) ? substr($0, RSTART + 7, RLENGTH - 7) : ""
    }
    /"event":"val"/ { val = loss(); vals++ }
    /"event":"step"/ { losses[++steps] = loss() }
    END {
      if (vals) { if (val != "") print "validation", val; exit }
      for (i = steps > 20 ? steps - 19 : 1; i <= steps; ++i) {
        if (losses[i] == "") exit
        sum += losses[i]; ++count
      }
      if (count) printf "training %.6f\n", sum / count
    }' "$1" 2>/dev/null || true
}

table=''
for rate in "${rates[@]}"; do
  if [[ " ${failed[*]} " == *" $rate "* ]]; then continue; fi
  found=$(result "$out/lr-$rate/log.jsonl")
  [ -z "$found" ] || table+="$rate $found"$'\n'
done
[ -n "$table" ] || { echo "$script: no run has a loss" >&2; exit 1; }
table=$(LC_ALL=C sort -g -k 3 <<<"${table%$'\n'}")
while read -r rate kind loss; do echo "lr $rate: $kind loss $loss"; done <<<"$table"
echo "best: lr ${table%% *}"
[ ${#failed[@]} = 0 ] || exit 1
