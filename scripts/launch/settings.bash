# What the scripts of this folder share; each sets `script` to its own name.

fail() {
  echo "${script:?}: $*" >&2
  exit 2
}

# The words as one line that a shell would take.
show() {
  local line
  printf -v line '%q ' "$@"
  echo "${line% }"
}

expect_count() {
  [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || fail "$1: expected a whole number from 1 on, got '$2'"
}

expect_seconds() {
  [[ $2 =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "$1: expected seconds, got '$2'"
}

# A configuration by its name in configs/ or by its path.
find_config() {
  local root=$1 name=$2
  if [ -f "$root/configs/$name.toml" ]; then
    echo "$root/configs/$name.toml"
  elif [ -f "$name" ]; then
    echo "$name"
  else
    local files=("$root"/configs/*.toml)
    local names=("${files[@]##*/}")
    fail "expected a file or one of ${names[*]%.toml}, got '$name'"
  fi
}

# The program train: LLMC_TRAIN, else the first of these presets that is built.
find_train() {
  local root=$1 preset
  shift
  if [ -n "${LLMC_TRAIN:-}" ]; then
    [ -x "$LLMC_TRAIN" ] || fail "LLMC_TRAIN: expected a program, got '$LLMC_TRAIN'"
    echo "$LLMC_TRAIN"
    return
  fi
  for preset in "$@"; do
    [ -x "$root/build/$preset/apps/train" ] || continue
    echo "$root/build/$preset/apps/train"
    return
  done
  fail "expected build/PRESET/apps/train of one of $*, got none; build it or set LLMC_TRAIN"
}

# How many GPUs this machine has. Where there are none, an option must say what to use instead.
count_gpus() {
  local count
  count=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
  [ "$count" -gt 0 ] || fail "expected $1, as no GPU was found on this machine"
  echo "$count"
}
