"""Trains GPT-2 on token files, step for step as llmc does with shuffling off.

    python python_ref/train.py --model gpt2-124M --train-data data/tiny_shakespeare_train.bin \\
        --micro-batch 4 --seq-len 64 --max-steps 10 --out-dir runs/torch

--init-from and --save-model exchange weights with llmc through llm.c's model files; --timing makes
it a peer to measure against.
"""

import argparse
import contextlib
from itertools import islice
import json
from pathlib import Path
import statistics
import time

import torch

from model import ATTENTIONS, GPT, GPTConfig, PRESETS
from model_file import VERSION_DTYPES, load_model, save_model
from optim import SCHEDULES, clip_gradients, learning_rate, make_adamw
from token_file import Batches

# Dense bf16 peaks in FLOP/s, by a part of the device's name.
BF16_PEAKS = {"A100": 312e12, "H100 PCIe": 756e12, "H100": 989.4e12, "H200": 989.4e12}
# Steps that --timing leaves out: compilation, first touch of memory.
UNTIMED_STEPS = 2


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_argument_group("model")
    group.add_argument("--model", choices=PRESETS, help="a preset; the sizes below override it")
    group.add_argument("--n-layer", type=int)
    group.add_argument("--n-head", type=int)
    group.add_argument("--n-embd", type=int)
    group.add_argument("--block-size", type=int)
    group.add_argument("--vocab-size", type=int)
    group.add_argument("--init-from", type=Path, help="an llm.c model file, in place of sizes")
    group.add_argument("--seed", type=int, default=42, help="of the initial weights")
    group.add_argument("--attention", choices=ATTENTIONS, default="sdpa")
    group.add_argument("--save-model", type=Path, help="write the final weights to this file")
    group.add_argument("--save-version", type=int, choices=VERSION_DTYPES, default=3)

    group = parser.add_argument_group("machine")
    group.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    group.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast")
    group.add_argument("--compile", action="store_true")
    group.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")

    group = parser.add_argument_group("data and steps")
    group.add_argument("--train-data", required=True, help="a glob of token files")
    group.add_argument("--val-data", help="a glob of token files")
    group.add_argument("--micro-batch", type=int, default=4)
    group.add_argument("--seq-len", type=int, default=64)
    group.add_argument("--tokens-per-step", type=int, help="default: one micro-batch")
    group.add_argument("--max-steps", type=int, default=10, help="0: only --save-model")
    group.add_argument("--val-every", type=int, default=0)
    group.add_argument("--val-batches", type=int, default=0, help="0: all")

    group = parser.add_argument_group("optimizer (AdamW)")
    group.add_argument("--lr", type=float, default=3e-4)
    group.add_argument("--schedule", choices=SCHEDULES, default="constant")
    group.add_argument("--warmup-steps", type=int, default=0)
    group.add_argument("--final-lr-fraction", type=float, default=0.0)
    group.add_argument("--decay-fraction", type=float, default=0.2, help="of a wsd schedule")
    group.add_argument("--beta1", type=float, default=0.9)
    group.add_argument("--beta2", type=float, default=0.95)
    group.add_argument("--eps", type=float, default=1e-8)
    group.add_argument("--weight-decay", type=float, default=0.0)
    group.add_argument("--grad-clip", type=float, default=1.0, help="0: none")
    group.add_argument("--fused", action=argparse.BooleanOptionalAction, default=True)

    group = parser.add_argument_group("output")
    group.add_argument("--out-dir", type=Path, help="write log.jsonl here")
    group.add_argument("--overwrite", action="store_true", help="replace a log that exists")
    group.add_argument(
        "--timing", action="store_true", help="end with a line of JSON: median ms, tokens/s"
    )
    args = parser.parse_args(argv)
    micro_tokens = args.micro_batch * args.seq_len
    args.tokens_per_step = args.tokens_per_step or micro_tokens
    if args.tokens_per_step % micro_tokens != 0:
        parser.error(
            f"--tokens-per-step: expected a multiple of {micro_tokens} "
            f"(micro-batch × seq-len), got {args.tokens_per_step}"
        )
    if args.val_every > 0 and not args.val_data:
        parser.error("--val-every: expected --val-data beside it")
    if args.timing and args.max_steps <= UNTIMED_STEPS:
        parser.error(f"--timing: expected --max-steps over {UNTIMED_STEPS}, got {args.max_steps}")
    return args


def make_model(args):
    sizes = {name: getattr(args, name) for name in GPTConfig.__dataclass_fields__}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    if args.init_from:
        if sizes or args.model:
            raise ValueError("--init-from: expected no sizes and no --model beside it")
        return load_model(args.init_from, args.attention)
    preset = vars(PRESETS[args.model]) if args.model else {}
    missing = {"n_layer", "n_head", "n_embd"} - (preset | sizes).keys()
    if missing:
        raise ValueError(f"expected --model, --init-from or all sizes, got no {sorted(missing)}")
    model = GPT(GPTConfig(**(preset | sizes)), args.attention)
    model.initialise(args.seed)
    return model


def flops_per_token(model, seq_len):
    parameters = sum(p.numel() for p in model.parameters())
    return 6 * parameters + 6 * model.config.n_layer * model.config.n_embd * seq_len


def peak_flops(args):
    """The device's peak, or None where it is not known."""
    if args.device == "cuda" and args.dtype == "bf16":
        name = torch.cuda.get_device_name()
        return next((peak for part, peak in BF16_PEAKS.items() if part in name), None)
    return None


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = make_model(args).to(args.device)
        self.losses = torch.compile(self.model) if args.compile else self.model
        self.optimizer = make_adamw(
            self.model,
            lr=args.lr,
            beta1=args.beta1,
            beta2=args.beta2,
            eps=args.eps,
            weight_decay=args.weight_decay,
            fused=args.fused,
        )
        shape = (args.micro_batch, args.seq_len, self.model.config.vocab_size)
        self.val_batches = Batches(args.val_data, *shape) if args.val_every > 0 else None
        self.train_batches = iter(Batches(args.train_data, *shape))
        self.log = None
        if args.out_dir:
            args.out_dir.mkdir(parents=True, exist_ok=True)
            self.log = open(args.out_dir / "log.jsonl", "w" if args.overwrite else "x")

    def autocast(self):
        if self.args.dtype == "bf16":
            return torch.autocast(self.args.device, torch.bfloat16)
        return contextlib.nullcontext()

    def summed_loss(self, batch):
        x, y = (tensor.to(self.args.device, non_blocking=True) for tensor in batch)
        with self.autocast():
            return self.losses(x, y).sum()

    def rate(self, step):
        args = self.args
        return learning_rate(
            step,
            peak=args.lr,
            schedule=args.schedule,
            warmup_steps=args.warmup_steps,
            max_steps=args.max_steps,
            final_fraction=args.final_lr_fraction,
            decay_fraction=args.decay_fraction,
        )

    def update(self, lr):
        """One optimizer step; returns the loss of its tokens before it and the gradient norm."""
        micro_tokens = self.args.micro_batch * self.args.seq_len
        self.optimizer.zero_grad()
        total = 0.0
        for batch in islice(self.train_batches, self.args.tokens_per_step // micro_tokens):
            loss = self.summed_loss(batch) / self.args.tokens_per_step
            loss.backward()
            total += loss.detach()
        norm = clip_gradients(self.model, self.args.grad_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return total.item(), norm.item()

    @torch.no_grad()
    def validate(self):
        count = self.args.val_batches or self.val_batches.batches_per_epoch()
        total = sum(self.summed_loss(batch).item() for batch in islice(self.val_batches, count))
        return total / (count * self.args.micro_batch * self.args.seq_len)

    def write(self, event):
        if self.log:
            print(json.dumps(event), file=self.log, flush=True)

    def write_validation(self, step):
        loss = self.validate()
        print(f"val at step {step}: loss {loss:.6f}", flush=True)
        self.write({"event": "val", "step": step, "loss": loss})

    def run(self):
        args = self.args
        tokens = args.tokens_per_step
        flops, peak = flops_per_token(self.model, args.seq_len), peak_flops(args)
        if self.val_batches:
            self.write_validation(0)
        times = []
        for step in range(1, args.max_steps + 1):
            lr = self.rate(step - 1)
            start = time.perf_counter()
            loss, norm = self.update(lr)
            seconds = time.perf_counter() - start
            times.append(seconds)
            event = {
                "event": "step",
                "step": step,
                "loss": loss,
                "grad_norm": norm,
                "lr": lr,
                "tokens": step * tokens,
                "ms": seconds * 1e3,
                "tokens_per_s": tokens / seconds,
                "mfu": flops * tokens / seconds / peak if peak else None,
            }
            self.write(event)
            mfu = f"{event['mfu']:.1%}" if peak else "n/a"
            print(
                f"step {step}/{args.max_steps} | loss {loss:.6f} | norm {norm:.4f} | "
                f"lr {lr:.3e} | {seconds * 1e3:.2f} ms | {tokens / seconds:.0f} tok/s | mfu {mfu}",
                flush=True,
            )
            last = step == args.max_steps
            if self.val_batches and (last or step % args.val_every == 0):
                self.write_validation(step)
        return times


def main():
    args = parse_arguments()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    trainer = Trainer(args)
    times = trainer.run()
    if args.save_model:
        save_model(args.save_model, trainer.model, VERSION_DTYPES[args.save_version])
    if args.timing:
        timed = times[UNTIMED_STEPS:]
        median = statistics.median(timed)
        summary = {
            "median_ms": median * 1e3,
            "min_ms": min(timed) * 1e3,
            "tokens_per_s": args.tokens_per_step / median,
            "timed_steps": len(timed),
        }
        if args.device == "cuda":
            summary["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        print(json.dumps(summary))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        raise SystemExit(f"[train] {error}")
