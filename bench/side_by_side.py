"""Times training steps of llmc and of the PyTorch reference in turn, and prints their ratio.

    python bench/side_by_side.py --build build/cpu-bench --threads 2

Each round runs bench/cpu_step, then python_ref/train.py eager and compiled, as processes of their
own on random tokens. A machine whose speed drifts slows all of them, so ratios are taken within
rounds.
"""

import argparse
import array
import json
import os
from pathlib import Path
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build/cpu-bench")
    parser.add_argument("--model", default="gpt2-124M")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true", help="PyTorch eager only")
    return parser.parse_args()


def write_tokens(path, count, vocab_size=50257):
    """A file of random tokens: 256 header words (magic, version 1, count), then 16-bit tokens."""
    header = array.array("i", [20240520, 1, count] + [0] * 253)
    draws = random.Random(1)
    tokens = array.array("H", (draws.randrange(vocab_size) for _ in range(count)))
    if sys.byteorder == "big":
        header.byteswap()
        tokens.byteswap()
    path.write_bytes(header.tobytes() + tokens.tobytes())


def last_json_line(command):
    """Runs a command and returns the JSON object on the last line it prints."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{result.stdout}{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.bin"
        write_tokens(tokens, 64 * args.batch * args.seq_len + 1)
        llmc = [args.build / "bench/cpu_step", "--only", "step", "--json", "--model", args.model]
        llmc += ["--batch", args.batch, "--seq-len", args.seq_len]
        llmc += ["--threads", args.threads, "--steps", args.steps]
        torch = [sys.executable, ROOT / "python_ref/train.py", "--timing", "--model", args.model]
        torch += ["--micro-batch", args.batch, "--seq-len", args.seq_len, "--train-data", tokens]
        torch += ["--threads", args.threads, "--max-steps", args.steps + 2, "--lr", "1e-4"]
        runs = {"llmc": llmc, "PyTorch eager": torch}
        if not args.no_compile:
            runs["PyTorch compiled"] = torch + ["--compile"]

        times = {name: [] for name in runs}
        ratios = []
        for round_number in range(1, args.rounds + 1):
            for name, command in runs.items():
                times[name].append(last_json_line(command)["median_ms"])
            peer = min(times[name][-1] for name in runs if name != "llmc")
            ratios.append(times["llmc"][-1] / peer)
            line = ", ".join(f"{name} {values[-1]:.0f} ms" for name, values in times.items())
            print(f"round {round_number}: {line}, llmc / better PyTorch {ratios[-1]:.2f}", flush=True)
    for name, values in times.items():
        print(f"{name}: median {statistics.median(values):.1f} ms a step")
    print(f"llmc / better PyTorch: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
