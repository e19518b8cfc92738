"""Compares the training losses of two runs of the same batches.

    python python_ref/compare_curves.py runs/a/log.jsonl runs/b/log.jsonl --max-relative 0.01

Prints the largest relative difference |a − b| / |b| of the losses and of their moving averages.
Exit status: 0, or 1 if the averages differ by more than --max-relative, or 2 if they cannot be
compared.
"""

import argparse
import sys

import numpy as np

from run_log import moving_average, read_run


def largest_relative(a, b, steps):
    """Returns the largest |a − b| / |b| and the step where it stands."""
    differences = np.abs(a - b) / np.abs(b)
    index = int(np.argmax(differences))
    return differences[index], steps[index]


def compare(run_a, run_b, window):
    """Returns (smoothed, raw, steps), the first two as (difference, step)."""
    steps = sorted(run_a.train.keys() & run_b.train.keys())
    if not steps:
        raise ValueError("expected steps that both runs have, found none")
    a = np.array([run_a.train[step] for step in steps])
    b = np.array([run_b.train[step] for step in steps])
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("expected finite losses, got others")
    window = min(window, len(steps))
    centres = steps[(window - 1) // 2 :]
    smoothed = largest_relative(moving_average(a, window), moving_average(b, window), centres)
    return smoothed, largest_relative(a, b, steps), steps


def save_plot(path, run_a, run_b, steps, window):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    window = min(window, len(steps))
    centres = steps[(window - 1) // 2 :][: len(steps) - window + 1]
    a, b = (np.array([run.train[step] for step in steps]) for run in (run_a, run_b))
    figure, (losses, difference) = pyplot.subplots(
        2, 1, sharex=True, height_ratios=(3, 1), figsize=(8, 6), layout="constrained"
    )
    losses.plot(centres, moving_average(a, window), label=run_a.name)
    losses.plot(centres, moving_average(b, window), "--", label=run_b.name)
    losses.set_ylabel(f"training loss, mean of {window} steps")
    losses.legend()
    relative = np.abs(moving_average(a, window) / moving_average(b, window) - 1.0)
    difference.plot(centres, relative)
    difference.set_ylabel("relative difference")
    difference.set_xlabel("step")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", help="a log, or the folder of a run")
    parser.add_argument("b")
    parser.add_argument("--window", type=int, default=20, help="steps in the moving average")
    parser.add_argument("--max-relative", type=float, help="fail beyond this difference")
    parser.add_argument("--png", help="plot both curves to this file")
    args = parser.parse_args()
    if args.window < 1:
        parser.error(f"--window: expected at least 1, got {args.window}")
    try:
        run_a, run_b = read_run(args.a), read_run(args.b)
        smoothed, raw, steps = compare(run_a, run_b, args.window)
    except (ValueError, OSError) as error:
        print(f"[compare_curves] {error}", file=sys.stderr)
        return 2
    window = min(args.window, len(steps))
    print(f"steps compared: {len(steps)} ({steps[0]} to {steps[-1]})")
    print(
        f"largest relative difference, moving average of {window}: {smoothed[0]:.3e} "
        f"(window centred on step {smoothed[1]})"
    )
    print(f"largest relative difference, single steps: {raw[0]:.3e} (step {raw[1]})")
    if args.png:
        save_plot(args.png, run_a, run_b, steps, window)
    if args.max_relative is not None and smoothed[0] > args.max_relative:
        print(f"more than {args.max_relative:g}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
