#!/usr/bin/env bash
# From a fresh machine to a trained GPT: installs what is missing, builds, writes a small corpus,
# trains on it, plots the loss and prints sampled text.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  "" | --yes) ;;
  *)
    echo "usage: scripts/quickstart.sh [--yes]"
    echo "  --yes  do not ask before installing packages"
    exit $([ "$1" = --help ] || [ "$1" = -h ] && echo 0 || echo 2) ;;
esac

heading() { printf '\n=== %s\n' "$1"; }
build=build/quickstart
apps=$build/apps
run=runs/quickstart

heading "1/5 Packages"
scripts/setup.sh "$@"

heading "2/5 Build"
# A folder of its own: only the programs, while build/cpu-release is the place for tests as well.
cmake --preset cpu-release -B $build -DLLMC_BUILD_TESTS=OFF -DLLMC_BUILD_EXAMPLES=OFF
cmake --build $build

heading "3/5 Text: tales from the built-in grammar"
$apps/prepare --corpus tales --bytes 4000000 --seed 1 --val-tokens 100000 \
  --out-dir data/tales --name tales

heading "4/5 Training"
$apps/train --config configs/quickstart.toml --out-dir $run --overwrite

heading "5/5 The model tells tales"
$apps/sample --checkpoint $run --max-new-tokens 400 --num-samples 3

heading "Done"
echo "The loss curve is $run/loss.svg; the run's log is $run/log.jsonl."
echo "Go on with: $apps/sample --checkpoint $run --prompt 'Emma the '"
