#!/usr/bin/env python3
"""Encodes the same files with llmc and with tiktoken, one thread each, in turns.

  python bench/tokenizer_side_by_side.py --bench build/cpu-bench/bench/tokenizer_bench --data FOLDER FILES...

FILES are UTF-8. FOLDER holds gpt2_encoder.json, gpt2_vocab.bpe and llama3.tiktoken. The ratio is taken within a round;
the median of the rounds is printed.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import tiktoken
import tiktoken.load

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python_ref"))
from compare_tokenizers import GPT2_PATTERN, LLAMA3_PATTERN  # noqa: E402


def encodings(data):
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    gpt2 = tiktoken.load.data_gym_to_mergeable_bpe_ranks(
        str(data / "gpt2_vocab.bpe"), str(data / "gpt2_encoder.json")
    )
    llama3 = tiktoken.load.load_tiktoken_bpe(str(data / "llama3.tiktoken"))
    for name, pattern, ranks, file in (
        ("gpt2", GPT2_PATTERN, gpt2, "gpt2_encoder.json"),
        ("llama3", LLAMA3_PATTERN, llama3, "llama3.tiktoken"),
    ):
        encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
        yield name, encoding, data / file


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    print(f"{'file':24} {'MB':>6} {'vocabulary':10} {'llmc MB/s':>10} {'tiktoken MB/s':>14} {'ratio':>6}")
    for name, encoding, file in encodings(options.data):
        for path in options.files:
            text = path.read_bytes().decode()
            ours, theirs = [], []
            for _ in range(options.rounds):
                result = json.loads(subprocess.check_output([options.bench, file, path]))
                begin = time.perf_counter()
                ids = encoding.encode_ordinary(text)
                theirs.append(time.perf_counter() - begin)
                ours.append(result["seconds"])
                assert result["tokens"] == len(ids), (result, len(ids))
            megabytes = result["bytes"] / 1e6
            ratio = statistics.median(b / a for a, b in zip(ours, theirs))
            print(f"{path.name:24} {megabytes:6.1f} {name:10} {megabytes / statistics.median(ours):10.1f} "
                  f"{megabytes / statistics.median(theirs):14.1f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
