"""Writes tests/golden/tiny_inference.safetensors: greedy continuations and multiple choice by the
model of tiny_gpt2_a.safetensors, in float64.

    python python_ref/write_inference_golden.py [--out-dir tests/golden]

README.md lists the tensors. Everything follows from fixed seeds.
"""

import argparse
from pathlib import Path

import numpy as np

from inference import greedy, predict
from model import GPT
from write_golden import TINY_GPT2, random_parameters, save_safetensors

MODEL = TINY_GPT2["tiny_gpt2_a"]
PROMPT_LENGTHS = (1, 3, 9, 23, 24)  # the last one fills the context
NEW_TOKENS = 60  # more than twice the context
EXAMPLES = 40


def ints(values):
    return np.array(values, dtype=np.int32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out-dir", type=Path, default=Path("tests/golden"))
    args = parser.parse_args()
    model = GPT(MODEL["config"], attention="naive").double()
    random_parameters(model, np.random.RandomState(MODEL["seed"]))
    rng = np.random.RandomState(7)

    def ids(count):
        return rng.randint(0, model.config.vocab_size, size=count).tolist()

    prompts = [ids(n) for n in PROMPT_LENGTHS]
    tensors = {
        "prompt_lengths": ints(PROMPT_LENGTHS),
        "prompts": ints(sum(prompts, [])),
        "greedy": ints([greedy(model, prompt, NEW_TOKENS) for prompt in prompts]),
    }
    contexts, endings, predictions = [], [], []
    for _ in range(EXAMPLES):
        contexts.append(ids(rng.randint(1, 30)))  # some are too long for the model
        endings.append([(ids(rng.randint(1, 8)), rng.randint(1, 20)) for _ in range(rng.randint(1, 6))])
        p = predict(model, contexts[-1], endings[-1])
        predictions.append([p["acc"], p["acc_norm"], p["acc_token"]])
    flat = [ending for example in endings for ending in example]
    tensors |= {
        "context_lengths": ints([len(c) for c in contexts]),
        "contexts": ints(sum(contexts, [])),
        "ending_counts": ints([len(e) for e in endings]),
        "ending_lengths": ints([len(e) for e, _ in flat]),
        "ending_characters": ints([c for _, c in flat]),
        "endings": ints(sum((e for e, _ in flat), [])),
        "predictions": ints(predictions),
    }
    save_safetensors(args.out_dir / "tiny_inference.safetensors", tensors, {"seed": 7})


if __name__ == "__main__":
    main()
