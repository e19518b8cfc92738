"""Reads the logs of runs: log.jsonl (llmc and this trainer) and main.log (llm.c and llmc)."""

from dataclasses import dataclass, field
import json
from pathlib import Path
import re

import numpy as np

MAIN_LOG_LINE = re.compile(r"s:(\d+) (tel|trl):(\S+)")


@dataclass
class Run:
    """Loss by number of finished updates. A step's training loss is that of its batch before it."""

    name: str
    train: dict = field(default_factory=dict)
    val: dict = field(default_factory=dict)


def read_run(path):
    """`path` is a log or a folder that holds one. Of a step logged twice, the later line counts."""
    path = Path(path)
    if path.is_dir():
        logs = [path / name for name in ("log.jsonl", "main.log") if (path / name).is_file()]
        if not logs:
            raise ValueError(f"{path}: expected a log.jsonl or main.log in it, found neither")
        run = Run(path.name)
        path = logs[0]
    else:
        run = Run(path.parent.name or path.stem)
    if path.suffix not in (".jsonl", ".log"):
        raise ValueError(f"{path}: expected a file named *.jsonl or *.log")
    read_lines = read_jsonl if path.suffix == ".jsonl" else read_main_log
    with open(path) as lines:
        read_lines(lines, run)
    if not run.train and not run.val:
        raise ValueError(f"{path}: expected steps or validations, found none")
    return run


def read_jsonl(lines, run):
    curves = {"step": run.train, "val": run.val}
    for line in lines:
        event = json.loads(line)
        if event["event"] in curves:
            curves[event["event"]][event["step"]] = finite_or_nan(event["loss"])


def read_main_log(lines, run):
    for line in lines:
        if match := MAIN_LOG_LINE.match(line):
            step, kind, loss = int(match[1]), match[2], float(match[3])
            # Steps count from 0 there, so the batch of step 0 belongs to the first update.
            if kind == "trl":
                run.train[step + 1] = loss
            else:
                run.val[step] = loss


def finite_or_nan(loss):
    return float("nan") if loss is None else float(loss)


def moving_average(values, window):
    """Means of all whole windows; entry i is centred on values[i + (window − 1) / 2]."""
    return np.convolve(values, np.full(window, 1.0 / window), mode="valid")
