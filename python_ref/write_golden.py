"""Writes the golden tensors of tests/golden: what PyTorch computes, for tests without PyTorch.

    python python_ref/write_golden.py [--out-dir tests/golden]

README.md lists the tensors and metadata of each file. Everything follows from fixed seeds.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from model import GPT, GPTConfig
from optim import clip_gradients, make_adamw

DTYPE_NAMES = {np.dtype("<f4"): "F32", np.dtype("<i4"): "I32"}

TINY_GPT2 = {
    # Nothing here is a multiple of a vector's width; some targets are ignored.
    "tiny_gpt2_a": dict(
        config=GPTConfig(n_layer=2, n_head=3, n_embd=39, block_size=24, vocab_size=97),
        B=3,
        T=17,
        seed=1001,
        ignored_targets=7,
        hyper=dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0),
    ),
    # Whole blocks, every position used.
    "tiny_gpt2_b": dict(
        config=GPTConfig(n_layer=3, n_head=4, n_embd=32, block_size=16, vocab_size=131),
        B=1,
        T=16,
        seed=1002,
        ignored_targets=0,
        hyper=dict(lr=3e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, grad_clip=0.0),
    ),
}
STEPS = 10
NORMAL_LENGTHS = (5, 16, 17, 100, 1000)


def save_safetensors(path, tensors, metadata):
    """tensors: name → float32 or int32 array; metadata: name → anything with a text form."""
    header = {"__metadata__": {"format": "pt"} | {k: str(v) for k, v in metadata.items()}}
    chunks, offset = [], 0
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(tensor)
        chunks.append(array.tobytes())
        header[name] = {
            "dtype": DTYPE_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))
    print(f"{path}: {len(tensors)} tensors, {path.stat().st_size} bytes")


def f32(tensor):
    return tensor.detach().to(torch.float32).numpy().copy()


def config_metadata(config):
    return vars(config) | {"padded_vocab_size": config.padded_vocab_size}


def random_parameters(model, rng):
    """Fills every parameter with values for which no gradient is trivial: sharp attention,
    LayerNorm weights away from one, biases away from zero. Padding rows stay zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.from_numpy(rng.standard_normal(tuple(parameter.shape)))
            if name in ("wte", "wpe"):
                values = 0.3 * noise
            elif parameter.dim() == 2:
                values = 0.8 / parameter.shape[1] ** 0.5 * noise
            elif name.endswith("bias"):
                values = 0.1 * noise
            else:
                values = 1.0 + 0.2 * noise
            # Rounded to the stored precision, so that both sides start from the same numbers.
            parameter.copy_(values.to(torch.float32))
        model.wte[model.config.vocab_size :] = 0.0


def write_tiny_gpt2(path, config, B, T, seed, ignored_targets, hyper):
    rng = np.random.RandomState(seed)
    model = GPT(config, attention="naive").double()
    random_parameters(model, rng)
    tokens = rng.randint(0, config.vocab_size, size=(B, T)).astype(np.int32)
    tokens[0, :2] = 0, config.vocab_size - 1
    targets = rng.randint(0, config.vocab_size, size=(B, T)).astype(np.int32)
    targets.flat[rng.choice(B * T, size=ignored_targets, replace=False)] = -1
    x, y = torch.from_numpy(tokens).long(), torch.from_numpy(targets).long()
    counted = (y >= 0).sum()

    optimizer = make_adamw(model, **{k: v for k, v in hyper.items() if k != "grad_clip"})
    tensors = {f"param.{name}": f32(p) for name, p in model.named_parameters()}
    tensors |= {"tokens": tokens, "targets": targets, "logits": f32(model.logits(x))}
    step_losses, step_norms = [], []
    for step in range(STEPS):
        losses = model(x, y)
        loss = losses.sum() / counted
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            tensors |= {"loss": f32(loss.view(1)), "losses": f32(losses)}
            tensors |= {f"grad.{name}": f32(p.grad) for name, p in model.named_parameters()}
        step_losses.append(loss.item())
        step_norms.append(clip_gradients(model, hyper["grad_clip"]).item())
        optimizer.step()
    tensors["step_loss"] = np.array(step_losses, dtype=np.float32)
    tensors["step_norm"] = np.array(step_norms, dtype=np.float32)
    tensors |= {f"after.{name}": f32(p) for name, p in model.named_parameters()}
    run = {"B": B, "T": T, "seed": seed, "steps": STEPS}
    save_safetensors(path, tensors, config_metadata(config) | run | hyper)


def write_tiny_init(path):
    config = TINY_GPT2["tiny_gpt2_a"]["config"]
    seed = 42
    model = GPT(config)
    model.initialise(seed)
    tensors = {f"param.{name}": f32(p) for name, p in model.named_parameters()}
    save_safetensors(path, tensors, config_metadata(config) | {"seed": seed})


def raw_u32(generator, count):
    """The generator's next `count` (even) 32-bit words, as int32 with the same bits."""
    # A draw over all of int64 takes two words, the first as the high half.
    pairs = torch.empty(count // 2, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return pairs.numpy().view("<i4").reshape(-1, 2)[:, ::-1].flatten()


def write_mt19937(path):
    tensors = {}
    for seed in (42, 137):
        tensors[f"seed{seed}.u32"] = raw_u32(torch.Generator().manual_seed(seed), 1300)
        generator = torch.Generator().manual_seed(seed)
        for length in NORMAL_LENGTHS:
            normals = torch.empty(length).normal_(generator=generator)
            tensors[f"seed{seed}.normal_{length}"] = normals.numpy()
        scaled = torch.empty(100).normal_(0.0, 0.02, generator=generator)
        tensors[f"seed{seed}.normal_100_std_0.02"] = scaled.numpy()
        # The five above left the second half of a pair behind; it comes first here.
        tensors[f"seed{seed}.normal_3"] = torch.empty(3).normal_(generator=generator).numpy()
        tensors[f"seed{seed}.u32_after"] = raw_u32(generator, 4)
    save_safetensors(path, tensors, {"seeds": "42 137"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default_dir = Path(__file__).resolve().parent.parent / "tests" / "golden"
    parser.add_argument("--out-dir", type=Path, default=default_dir)
    out_dir = parser.parse_args().out_dir
    out_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name, case in TINY_GPT2.items():
        write_tiny_gpt2(out_dir / f"{name}.safetensors", **case)
    write_tiny_init(out_dir / "tiny_init.safetensors")
    write_mt19937(out_dir / "mt19937.safetensors")


if __name__ == "__main__":
    main()
