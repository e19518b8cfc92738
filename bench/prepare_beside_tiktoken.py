"""Times prepare beside a Python program that does the same with tiktoken, on the same text.

usage: prepare_beside_tiktoken.py PREPARE TOKENIZER TEXT [--rounds N]

TOKENIZER is a folder with vocab.json and merges.txt, or under other names that prepare knows; TEXT
is cut into documents at its blank lines. The programs run in turn, so that a busy machine slows both;
of each the best round counts. Both tokens files must be equal. Needs tiktoken and numpy.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PEER = """
import json, re, sys
import numpy, tiktoken
folder, text, out = sys.argv[1:]
name = next(n for n in ("vocab.json", "encoder.json", "gpt2_encoder.json") if __import__("os").path.exists(folder + "/" + n))
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
byte_of = {chr(b): b for b in plain}
byte_of.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})
ids = json.load(open(folder + "/" + name))
ranks = {bytes(byte_of[c] for c in token): id for token, id in ids.items() if token != "<|endoftext|>"}
pattern = r"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
import time
began = time.perf_counter()
documents = open(text, encoding="utf-8", newline="").read().split("\\n\\n")
tokens = []
for i, document in enumerate(documents):
    if i + 1 < len(documents):
        document += "\\n\\n"
    if document:
        tokens.append(50256)
        tokens.extend(encoding.encode_ordinary(document))
header = numpy.zeros(256, dtype=numpy.int32)
header[:3] = 20240520, 1, len(tokens)
with open(out, "wb") as file:
    file.write(header.tobytes())
    file.write(numpy.array(tokens, dtype=numpy.uint16).tobytes())
print(time.perf_counter() - began)
"""


def run_prepare(arguments, folder, threads):
    command = [arguments.prepare, "--tokenizer", arguments.tokenizer, "--input", arguments.text,
               "--split", "blank-line", "--threads", str(threads), "--out-dir", folder, "--name", "ours"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def run_tiktoken(arguments, folder):
    """Without the time to start Python and to load the tokenizer, which prepare's time contains."""
    command = [sys.executable, "-c", PEER, arguments.tokenizer, arguments.text, f"{folder}/peer.bin"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prepare")
    parser.add_argument("tokenizer")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    threads = sorted({1, 2, len(os.sched_getaffinity(0))})
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for name, run in [("tiktoken", lambda: run_tiktoken(arguments, folder)),
                              *((f"prepare, {n} threads", lambda n=n: run_prepare(arguments, folder, n))
                                for n in threads)]:
                best[name] = min(best.get(name, 1e9), run())
        ours, peer = (pathlib.Path(folder, name).read_bytes() for name in ("ours_train.bin", "peer.bin"))
        if ours != peer:
            sys.exit("expected equal token files, got different ones")
    size = os.path.getsize(arguments.text) / 1e6
    for name, seconds in best.items():
        print(f"{name:20} {seconds:8.2f} s {size / seconds:8.1f} MB/s {best['tiktoken'] / seconds:6.2f} × tiktoken")


if __name__ == "__main__":
    main()
