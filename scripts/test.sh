#!/usr/bin/env bash
# Installs what is missing, builds the library, apps, examples and tests, and runs ctest.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=cpu-release setup=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --yes) setup+=(--yes); shift ;;
    --) shift; break ;;
    --help | -h)
      echo "usage: scripts/test.sh [--preset NAME] [--yes] [-- CTEST-OPTIONS]"
      echo "Presets: cpu-release (default), cpu-clang, cpu-asan, cpu-mpi, cpu-mpi-asan."
      exit 0 ;;
    *) echo "test.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
done

case $preset in cpu-mpi*) setup+=(--mpi) ;; esac
scripts/setup.sh --tests "${setup[@]}"
cmake --preset "$preset" -DLLMC_BUILD_TESTS=ON -DLLMC_BUILD_APPS=ON -DLLMC_BUILD_EXAMPLES=ON
cmake --build --preset "$preset"
ctest --preset "$preset" --no-tests=error -j "$(nproc)" "$@"
