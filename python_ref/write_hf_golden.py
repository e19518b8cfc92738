"""Writes tests/golden/hf: small GPT-2 folders by `transformers` and by llmc, and their logits.

Needs a build of llmc (see hf_models.py) for the folder that llmc writes.
"""

from pathlib import Path
import shutil

from safetensors.numpy import save_file
import torch

from hf_models import ROOT, convert, exact_logits, random_gpt2, random_tokens

SIZES = dict(vocab_size=263, n_positions=19, n_embd=18, n_layer=2, n_head=3, layer_norm_epsilon=3e-5)
SMALL = dict(vocab_size=61, n_positions=14, n_embd=12, n_layer=3, n_head=2, n_inner=48)


def keep(folder, *patterns):
    """Removes what is not part of the test."""
    for path in folder.iterdir():
        if not any(path.match(pattern) for pattern in patterns):
            path.unlink()


def main():
    out = ROOT / "tests" / "golden" / "hf"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    logits = {}

    # float32 in several files, with an index.
    model = random_gpt2(2001, **SIZES)
    model.save_pretrained(out / "sharded", max_shard_size="24KB")
    logits["sharded.tokens"] = random_tokens(1, SIZES["vocab_size"], 2, 13)
    logits["sharded.logits"] = exact_logits(model, logits["sharded.tokens"]).astype("float32")

    # bfloat16, and names as those of a model without a head: no "transformer." in front.
    model = random_gpt2(2002, **SMALL).bfloat16()
    model.transformer.save_pretrained(out / "bf16")
    logits["bf16.tokens"] = random_tokens(2, SMALL["vocab_size"], 3, 14)
    logits["bf16.logits"] = exact_logits(model, logits["bf16.tokens"]).astype("float32")

    for folder in ("sharded", "bf16"):
        keep(out / folder, "config.json", "*.safetensors", "*.index.json")
    convert(out / "sharded", out / "llmc", "--precision", "bf16", "--tokenizer", "byte")
    save_file(logits, out / "logits.safetensors")
    print(f"{out}: {sum(p.stat().st_size for p in out.rglob('*') if p.is_file())} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
