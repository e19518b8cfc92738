#!/usr/bin/env bash
# Fetches GPT-2's weights and tokenizer from Hugging Face, as a folder that train, eval, sample and
# convert read.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: scripts/data/gpt2.sh [--model 124M|355M|774M|1558M] [--out-dir FOLDER] [--from FOLDER]

  --model    which of the four sizes; default 124M
  --out-dir  where to put it; default data/gpt2-MODEL
  --from     copy from a folder in place of the network

An interrupted download goes on where it stopped when the command is repeated; whole files are kept.
Weights are compared with the checksum that is known (124M) or that the server tells.
HF_ENDPOINT names a mirror, HF_TOKEN a token of access.
USAGE
}

die() { echo "gpt2.sh: $*" >&2; exit 1; }
bad_option() { echo "gpt2.sh: $*" >&2; exit 2; }

model=124M out='' from=''
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --model | --out-dir | --from) [ $# -ge 2 ] || bad_option "$1: expected a value, got none" ;;&
    --model) model=$2; shift 2 ;;
    --out-dir) out=$2; shift 2 ;;
    --from) from=$2; shift 2 ;;
    *) bad_option "unknown option $1 (see --help)" ;;
  esac
done
revision=main
case $model in
  124M) repository=gpt2 revision=607a30d783dfa663caf39e06633721c8d4cfcd7e ;;
  355M) repository=gpt2-medium ;;
  774M) repository=gpt2-large ;;
  1558M) repository=gpt2-xl ;;
  *) bad_option "--model: expected 124M, 355M, 774M or 1558M, got $model" ;;
esac
out=${out:-data/gpt2-$model}

# SHA-256 of the files of that revision of 124M.
declare -A known=(
  [config.json]=0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4
  [generation_config.json]=ed0b32ac72c0f5f44a719abb2d7786ea5146c871f83717b7f2018065954de02b
  [merges.txt]=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
  [model.safetensors]=248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707
  [tokenizer.json]=8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6
  [tokenizer_config.json]=5e04eb606e3a1583530a42e36c2a6b6615c86f34fe77e44d9ddeb43ff940931f
  [vocab.json]=196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
)
# The config comes last: without it the folder is no model.
files=(vocab.json merges.txt tokenizer.json tokenizer_config.json generation_config.json
  model.safetensors config.json)

sha256() { sha256sum -- "$1" | cut -d ' ' -f 1; }

# fetch OPTIONS... URL: curl, with the token where there is one, out of sight of other users.
fetch() {
  if [ -n "${HF_TOKEN:-}" ]; then
    curl --fail --location --header @<(printf 'Authorization: Bearer %s\n' "$HF_TOKEN") "$@"
  else
    curl --fail --location "$@"
  fi
}

# The checksum that FILE must have: the known one, or the server's if it tells one; else empty.
expected_sha256() {
  if [ "$model" = 124M ]; then
    echo "${known[$1]}"
  else
    fetch --silent --head "$2" | tr -d '\r"' |
      sed -n 's/^[Xx]-[Ll]inked-[Ee][Tt]ag: *\([0-9a-f]\{64\}\)$/\1/p' | head -n 1
  fi
}

# fetch_part URL PART: goes on with a part, or begins anew where the server cannot.
fetch_part() {
  local options=(--retry 5 --retry-delay 2 --output "$2" --write-out '%{http_code}')
  local status code=0
  if [ -t 2 ]; then options+=(--progress-bar); else options+=(--silent); fi
  status=$(fetch "${options[@]}" --continue-at - "$1") || code=$?
  if [ $code = 33 ] || [ "$status" = 416 ]; then
    rm -f "$2"
    code=0
    status=$(fetch "${options[@]}" "$1") || code=$?
  fi
  [ $code = 0 ] || die "cannot download $1: curl ended with $code (HTTP status $status); repeat the" \
    "command to go on"
}

download() {
  local file=$1 part=$out/$1.part url expected
  url=${HF_ENDPOINT:-https://huggingface.co}
  url=${url%/}/openai-community/$repository/resolve/$revision/$file
  expected=$(expected_sha256 "$file" "$url") || die "cannot reach $url; a folder that was copied" \
    "from another machine can be given with --from"
  if [ -f "$out/$file" ] && { [ -z "$expected" ] || [ "$(sha256 "$out/$file")" = "$expected" ]; }; then
    echo "$out/$file is there"
    return
  fi
  # A part that is whole already would make the server refuse the range.
  if ! { [ -f "$part" ] && [ -n "$expected" ] && [ "$(sha256 "$part")" = "$expected" ]; }; then
    echo "$url"
    fetch_part "$url" "$part"
  fi
  if [ -n "$expected" ] && [ "$(sha256 "$part")" != "$expected" ]; then
    rm -f "$part"
    die "$url: expected the SHA-256 $expected, got another; repeat the command to fetch it anew"
  fi
  mv "$part" "$out/$file"
}

# Copies a model's folder; those of 124M as published must have its checksums.
copy() {
  local path file is_published=false
  [ -f "$from/config.json" ] || die "--from: expected config.json in $from, got none"
  [ "$(realpath "$from")" != "$(realpath -m "$out")" ] || die "--from: $from is the --out-dir"
  compgen -G "$from/*.safetensors" >/dev/null || die "--from: expected *.safetensors in $from, got none"
  [ "$(sha256 "$from/config.json")" != "${known[config.json]}" ] || is_published=true
  rm -f "$out/config.json"
  for path in "$from"/*.safetensors "$from"/*.safetensors.index.json "$from"/{vocab,tokenizer}.json \
    "$from"/merges.txt "$from"/{tokenizer,generation}_config.json "$from"/config.json; do
    [ -f "$path" ] || continue
    file=$(basename "$path")
    cp -- "$path" "$out/$file.part" 2>/dev/null || die "cannot copy $path to $out"
    if $is_published && [ -n "${known[$file]:-}" ] &&
      [ "$(sha256 "$out/$file.part")" != "${known[$file]}" ]; then
      rm -f "$out/$file.part"
      die "$path: expected the SHA-256 ${known[$file]}, got another; the file is damaged"
    fi
    mv "$out/$file.part" "$out/$file"
    echo "$out/$file"
  done
}

mkdir -p "$out" 2>/dev/null || die "cannot make $out"
if [ -n "$from" ]; then
  copy
else
  command -v curl >/dev/null || die "expected curl, got none; install it, or use --from FOLDER"
  for file in "${files[@]}"; do download "$file"; done
fi
echo "$out is ready: train --init-from $out, eval --checkpoint $out, sample --checkpoint $out"
