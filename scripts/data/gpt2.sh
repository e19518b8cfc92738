#!/usr/bin/env bash
# Fetches GPT-2's weights and tokenizer: see gpt2.py.
exec python3 "$(dirname "$0")/gpt2.py" "$@"
