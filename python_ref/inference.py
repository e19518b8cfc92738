"""What llmc's `sample --greedy` and `eval --choices` compute, in plain PyTorch and without a cache.

    python python_ref/inference.py generate --model start.bin --tokenizer byte --prompt "ROMEO:"
    python python_ref/inference.py choices --model start.bin --tokenizer gpt2/tokenizer.json \
        --choices set.jsonl --predictions torch.jsonl

`choices` prints the three accuracies, and writes the same lines as `eval --predictions`: with
--compare FILE it says in how many examples the two differ.
"""

import argparse
import json
from pathlib import Path

import torch

from model_file import load_model


class ByteTokenizer:
    end_of_text = 256

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode(errors="replace")


class JsonTokenizer:
    """A tokenizer.json, through Hugging Face's library."""

    def __init__(self, path):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(path))
        self.end_of_text = self.tokenizer.token_to_id("<|endoftext|>")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def open_tokenizer(name):
    return ByteTokenizer() if name == "byte" else JsonTokenizer(name)


@torch.no_grad()
def greedy(model, prompt, count):
    """The `count` likeliest tokens after a prompt. Whenever the context has outgrown block_size, its
    newest half stays."""
    block_size = model.config.block_size
    context, drawn = list(prompt), []
    for _ in range(count):
        if len(context) > block_size:
            context = context[-max(block_size // 2, 1) :]
        token = model.logits(torch.tensor([context]))[0, -1].argmax().item()
        context.append(token)
        drawn.append(token)
    return drawn


def encode_pair(tokenizer, context, ending):
    """As lm-evaluation-harness does it: white space at the context's end goes to the ending."""
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + " " + ending
    context_ids = tokenizer.encode(stripped)
    whole = tokenizer.encode(stripped + continuation)
    return context_ids or [tokenizer.end_of_text], whole[len(context_ids) :]


def read_examples(path, tokenizer):
    """JSON Lines → [(context ids, [(ending ids, characters)], label)]."""
    examples = []
    for line in path.read_text().splitlines():
        if not line.strip():
            continue
        example = json.loads(line)
        pairs = [encode_pair(tokenizer, example["ctx"], e) for e in example["endings"]]
        endings = [(ids, len(e)) for (_, ids), e in zip(pairs, example["endings"])]
        examples.append((pairs[0][0], endings, int(example["label"])))
    return examples


@torch.no_grad()
def log_probability(model, context, ending):
    ids = (context + ending)[-(model.config.block_size + 1) :]
    logits = model.logits(torch.tensor([ids[:-1]]))[0, -len(ending) :]
    return logits.log_softmax(-1).gather(1, torch.tensor(ending)[:, None]).sum().item()


def predict(model, context, endings):
    """The ending taken by summed log-probability, by that per character, and per token."""
    sums = [log_probability(model, context, ids) for ids, _ in endings]

    def best(scores):
        return max(range(len(scores)), key=scores.__getitem__)

    known = all(characters > 0 for _, characters in endings)
    return {
        "acc": best(sums),
        "acc_norm": best([s / c for s, (_, c) in zip(sums, endings)]) if known else None,
        "acc_token": best([s / len(ids) for s, (ids, _) in zip(sums, endings)]),
    }


def run_choices(model, tokenizer, args):
    examples = read_examples(args.choices, tokenizer)
    predictions = [
        {"example": i, "label": label} | predict(model, context, endings)
        for i, (context, endings, label) in enumerate(examples)
    ]
    for rule in ("acc", "acc_norm", "acc_token"):
        right = sum(p[rule] == p["label"] for p in predictions)
        print(f"{rule:10}{right / len(predictions):.4f}")
    lines = [json.dumps(p, separators=(",", ":")) for p in predictions]
    if args.predictions:
        args.predictions.write_text("\n".join(lines) + "\n")
    if args.compare:
        others = [json.loads(line) for line in args.compare.read_text().splitlines()]
        differ = sum(a != b for a, b in zip(predictions, others, strict=True))
        print(f"{differ} of {len(predictions)} examples differ from {args.compare}")
        return 1 if differ else 0
    return 0


def run_generate(model, tokenizer, args):
    prompt = [tokenizer.end_of_text] + tokenizer.encode(args.prompt)
    drawn = greedy(model, prompt, args.max_new_tokens)
    if tokenizer.end_of_text in drawn:
        drawn = drawn[: drawn.index(tokenizer.end_of_text)]
    print(args.prompt + tokenizer.decode(drawn))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, run in (("generate", run_generate), ("choices", run_choices)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--model", type=Path, required=True, help="llm.c model file")
        command.add_argument("--tokenizer", required=True, help="byte, or a tokenizer.json")
        if name == "generate":
            command.add_argument("--prompt", default="")
            command.add_argument("--max-new-tokens", type=int, default=256)
        else:
            command.add_argument("--choices", type=Path, required=True, help="JSON Lines")
            command.add_argument("--predictions", type=Path)
            command.add_argument("--compare", type=Path, help="predictions of llmc's eval")
    args = parser.parse_args()
    return args.run(load_model(args.model), open_tokenizer(args.tokenizer), args)


if __name__ == "__main__":
    raise SystemExit(main())
