"""Random tiny GPT-2s of Hugging Face's `transformers`, and llmc's programs beside them."""

import os
from pathlib import Path
import subprocess

import numpy as np
from safetensors.numpy import load_file, save_file
import torch
from transformers import GPT2Config, GPT2LMHeadModel

ROOT = Path(__file__).resolve().parent.parent
# The build whose programs are compared.
BUILD = Path(os.environ.get("LLMC_BUILD", ROOT / "build" / "cpu-release"))


def random_gpt2(seed, **sizes):
    """A GPT2LMHeadModel in which every weight matters: sharp attention, norms away from one, biases
    away from zero."""
    config = GPT2Config(**{"bos_token_id": None, "eos_token_id": None} | sizes)
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
        for name, parameter in model.named_parameters():
            if ".ln_" in name and name.endswith("weight"):
                parameter.add_(1.0)
    return model


def random_tokens(seed, vocab_size, B, T):
    """(B, T), the first and the last token of the vocabulary among them."""
    tokens = np.random.RandomState(seed).randint(0, vocab_size, (B, T)).astype(np.int32)
    tokens[0, :2] = 0, vocab_size - 1
    return tokens


def exact_logits(model, tokens):
    """In float64 from the model's weights; (B, T, V)."""
    with torch.no_grad():
        return model.double()(torch.from_numpy(tokens).long()).logits.numpy()


def program(*path):
    file = BUILD.joinpath(*path)
    if not file.is_file():
        raise FileNotFoundError(f"expected {file}; build llmc, or name another build in LLMC_BUILD")
    return file


def run(path, *arguments):
    """Runs one of llmc's programs; its error becomes ours."""
    result = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip())
    return result.stdout


def convert(checkpoint, out, *options):
    run(program("apps", "convert"), "--checkpoint", checkpoint, "--out", out, *options)


def llmc_logits(model_path, tokens, scratch):
    """What llmc computes from a model file or folder; (B, T, V)."""
    save_file({"tokens": tokens}, scratch / "tokens.safetensors")
    run(
        program("tests", "io", "model_logits"),
        model_path,
        scratch / "tokens.safetensors",
        scratch / "logits.safetensors",
    )
    return load_file(scratch / "logits.safetensors")["logits"]


def relative_l2(a, b):
    a, b = (np.asarray(value, dtype=np.float64) for value in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)
