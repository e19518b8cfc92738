#!/usr/bin/env bash
# Installs with apt what building llmc needs and this machine lacks.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/setup.sh [--yes] [--tests] [--bench] [--mpi]

  --yes    do not ask before installing
  --tests  also what the tests use
  --bench  also what the benchmarks use
  --mpi    also what the presets for several processes use

Prints the apt line first and asks for leave on a terminal. Without apt, or without the right to use
it, says what CMake will download instead.
EOF
}

yes=false tests=false bench=false mpi=false
for argument in "$@"; do
  case $argument in
    --yes) yes=true ;;
    --tests) tests=true ;;
    --bench) bench=true ;;
    --mpi) mpi=true ;;
    --help | -h) usage; exit 0 ;;
    *) echo "setup.sh: unknown option $argument (see --help)" >&2; exit 2 ;;
  esac
done

has_header() { [ -n "$(find /usr/include /usr/local/include -path "*/$1" -print -quit 2>/dev/null)" ]; }

required=() optional=()
command -v cmake >/dev/null || required+=(cmake)
command -v ninja >/dev/null || required+=(ninja-build)
command -v "${CXX:-g++}" >/dev/null || required+=(g++)
command -v git >/dev/null || optional+=(git)
has_header nlohmann/json.hpp || optional+=(nlohmann-json3-dev)
has_header zlib.h || optional+=(zlib1g-dev)
has_header CLI/CLI.hpp || optional+=(libcli11-dev)
if $tests; then
  has_header gtest/gtest.h || optional+=(libgtest-dev)
  has_header pcre2.h || optional+=(libpcre2-dev)
fi
if $bench; then
  has_header benchmark/benchmark.h || optional+=(libbenchmark-dev)
  has_header oneapi/dnnl/dnnl.h || optional+=(libdnnl-dev)
  has_header cblas.h || optional+=(libopenblas-dev)
fi
if $mpi; then
  command -v mpicxx >/dev/null || required+=(libopenmpi-dev)
  command -v mpirun >/dev/null || required+=(openmpi-bin)
fi

missing=("${required[@]}" "${optional[@]}")
if [ ${#missing[@]} = 0 ]; then
  echo "setup.sh: nothing is missing"
  exit 0
fi

without_apt() {
  if [ ${#required[@]} -gt 0 ]; then
    echo "setup.sh: $1; please install: ${required[*]}" >&2
    exit 1
  fi
  echo "setup.sh: $1; CMake will download what is missing (${optional[*]})"
  exit 0
}

command -v apt-get >/dev/null || without_apt "there is no apt on this machine"
run=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || without_apt "installing needs root or sudo"
  run=(sudo)
fi

echo "This will run: ${run[*]:+${run[*]} }apt-get install -y --no-install-recommends ${missing[*]}"
if ! $yes && [ -t 0 ] && [ -t 1 ]; then
  read -r -p "Go on? [Y/n] " answer
  case $answer in
    "" | [Yy]*) ;;
    *) without_apt "nothing was installed" ;;
  esac
fi
"${run[@]}" apt-get update -qq || without_apt "apt-get update failed"
DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null || without_apt "apt-get install failed"
