"""Runs training steps of llmc and of the PyTorch reference in turn, and sets them side by side.

    python bench/side_by_side.py --threads 2                     # CPU: eager and compiled
    python bench/side_by_side.py --device cuda --batch 64        # GPU: flash and cuDNN attention

Each round runs bench/cpu_step or bench/train_step, then python_ref/train.py in each of its forms, as
processes of their own on random tokens. A machine whose speed drifts slows all of them, so ratios
are taken within rounds.
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
import time

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--build", type=Path, help="default: build/DEVICE-bench")
    parser.add_argument("--model", default="gpt2-124M")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, help="default: 64 on the CPU, 1024 on a GPU")
    parser.add_argument("--tokens-per-step", type=int, default=524288, help="GPU only")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="GPU only")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", help="comma-separated: eager, compiled; on a GPU flash, cudnn")
    parser.add_argument("--llmc-options", default="", help="more options for llmc's program")
    args = parser.parse_args()
    args.build = args.build or ROOT / f"build/{args.device}-bench"
    args.seq_len = args.seq_len or (64 if args.device == "cpu" else 1024)
    args.peers = (args.peers or {"cpu": "eager,compiled", "cuda": "flash,cudnn"}[args.device]).split(",")
    return args


def write_tokens(path, count, vocab_size=50257):
    """A file of random tokens: 256 header words (magic, version 1, count), then 16-bit tokens."""
    header = array.array("i", [20240520, 1, count] + [0] * 253)
    draws = random.Random(1)
    tokens = array.array("H", (draws.randrange(vocab_size) for _ in range(count)))
    if sys.byteorder == "big":
        header.byteswap()
        tokens.byteswap()
    path.write_bytes(header.tobytes() + tokens.tobytes())


def measure(command):
    """Runs a command; the JSON object on its last line, and the seconds to its line "step 1"."""
    began = time.perf_counter()
    first_step = None
    lines = []
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for line in process.stdout:
        if first_step is None and line.startswith("step 1"):
            first_step = time.perf_counter() - began
        lines.append(line)
    if process.wait() != 0:
        raise SystemExit(f"{command[0]} failed:\n{''.join(lines)}")
    return json.loads(lines[-1]) | {"first_step_s": first_step}


def commands(args, tokens):
    """What to run, by name."""
    torch = [sys.executable, ROOT / "python_ref/train.py", "--timing", "--model", args.model]
    torch += ["--micro-batch", args.batch, "--seq-len", args.seq_len, "--train-data", tokens]
    torch += ["--max-steps", args.steps + 2, "--lr", "1e-4", "--device", args.device]
    llmc = ["--json", "--model", args.model, "--batch", args.batch, "--seq-len", args.seq_len]
    llmc += args.llmc_options.split()
    if args.device == "cpu":
        llmc = [args.build / "bench/cpu_step", "--only", "step", "--steps", args.steps] + llmc
        llmc += ["--threads", args.threads]
        torch += ["--threads", args.threads]
        forms = {"eager": [], "compiled": ["--compile"]}
    else:
        llmc = [args.build / "bench/train_step", "--precision", args.precision] + llmc
        llmc += ["--tokens-per-step", args.tokens_per_step]
        # A vocabulary that is a multiple of 128 is faster in PyTorch.
        torch += ["--vocab-size", 50304, "--tokens-per-step", args.tokens_per_step]
        torch += ["--dtype", args.precision, "--compile", "--attention"]
        forms = {"flash": ["flash"], "cudnn": ["cudnn"]}
    return {"llmc": llmc} | {f"PyTorch {peer}": torch + forms[peer] for peer in args.peers}


def describe(name, result):
    parts = [f"{name:16} {result['median_ms']:9.1f} ms {result['tokens_per_s']:9.0f} tok/s"]
    if result.get("mfu"):
        parts.append(f"MFU {result['mfu']:.1%}")
    if result.get("peak_memory_bytes"):
        parts.append(f"{result['peak_memory_bytes'] / 1e9:.1f} GB")
    if result.get("device_bytes"):
        parts.append(f"({result['device_bytes'] / 1e9:.1f} GB taken from the device)")
    if result["first_step_s"] is not None:
        parts.append(f"first step after {result['first_step_s']:.1f} s")
    return ", ".join(parts)


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens.bin"
        count = 64 * args.batch * args.seq_len if args.device == "cpu" else args.tokens_per_step
        write_tokens(tokens, count + 1)
        runs = commands(args, tokens)
        results = {name: [] for name in runs}
        ratios = []
        for round_number in range(1, args.rounds + 1):
            print(f"round {round_number}", flush=True)
            for name, command in runs.items():
                results[name].append(measure(command))
                print("  " + describe(name, results[name][-1]), flush=True)
            peer = min(results[name][-1]["median_ms"] for name in runs if name != "llmc")
            ratios.append(results["llmc"][-1]["median_ms"] / peer)
            print(f"  time of llmc / better PyTorch {ratios[-1]:.3f}", flush=True)
    for name, values in results.items():
        print(f"{name}: median {statistics.median(v['median_ms'] for v in values):.1f} ms a step")
    ratio = statistics.median(ratios)
    print(f"llmc takes {ratio:.3f} of the better PyTorch's time: {1 / ratio:.2f} times its speed")


if __name__ == "__main__":
    main()
