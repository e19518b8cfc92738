"""Overlays the loss curves of any number of runs in one picture.

    python python_ref/plot_log.py runs/a runs/b/log.jsonl other/main.log --out loss.png

Thin lines are single steps, thick ones their moving average over --window steps (at most a tenth of
the run), dots the validation loss.
"""

import argparse


def plot_run(axes, run, window, colour):
    from run_log import moving_average

    steps = sorted(run.train)
    losses = [run.train[step] for step in steps]
    if steps:
        window = max(1, min(window, len(steps) // 10))
        axes.plot(steps, losses, color=colour, alpha=0.3, linewidth=0.7)
        centres = steps[(window - 1) // 2 :][: len(steps) - window + 1]
        label = f"{run.name}: training"
        axes.plot(centres, moving_average(losses, window), color=colour, label=label)
    if run.val:
        steps = sorted(run.val)
        losses = [run.val[step] for step in steps]
        label = f"{run.name}: validation"
        axes.plot(steps, losses, "o--", color=colour, markersize=4, linewidth=0.7, label=label)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="logs, or folders of runs")
    parser.add_argument("--out", default="loss.png")
    parser.add_argument("--window", type=int, default=20, help="steps in the moving average")
    parser.add_argument("--log-x", action="store_true")
    parser.add_argument("--log-y", action="store_true")
    args = parser.parse_args()
    if args.window < 1:
        parser.error(f"--window: expected at least 1, got {args.window}")
    try:  # here, so that --help needs neither
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        from run_log import read_run
    except ModuleNotFoundError as error:
        raise SystemExit(f"[plot_log] needs {error.name}: pip install numpy matplotlib")
    try:
        runs = [read_run(path) for path in args.runs]
    except (ValueError, OSError) as error:
        raise SystemExit(f"[plot_log] {error}")

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for index, run in enumerate(runs):
        plot_run(axes, run, args.window, f"C{index}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    if args.log_x:
        axes.set_xscale("log")
    if args.log_y:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(args.out, dpi=120)
    print(args.out)


if __name__ == "__main__":
    main()
