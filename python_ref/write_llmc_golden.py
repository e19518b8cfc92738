"""Writes tests/golden/llmc: the files of llm.c's starter pack for a tiny model.

The model in both precisions, the debug state with logits, loss and gradients of one batch, and the
losses of ten AdamW steps on it, with the settings of llm.c's two tests.
"""

from pathlib import Path

import numpy as np
import torch

from model import GPT, GPTConfig
from model_file import HEADER_BYTES, parameters_in_file_order, save_model
from optim import clip_gradients, make_adamw
from write_golden import STEPS, f32, random_parameters, save_safetensors

CONFIG = GPTConfig(n_layer=2, n_head=2, n_embd=14, block_size=11, vocab_size=53)
B, T = 3, 9
DEBUG_MAGIC, DEBUG_VERSION = 20240327, 2
SETTINGS = {
    "clipped": dict(beta2=0.95, weight_decay=0.0, grad_clip=1.0),
    "decayed": dict(beta2=0.999, weight_decay=0.01, grad_clip=0.0),
}


def new_model():
    model = GPT(CONFIG, attention="naive").double()
    random_parameters(model, np.random.RandomState(3001))
    return model


def mean_loss(model, x, y):
    return model(x, y).mean()


def write_debug_state(path, model, x, y):
    loss = mean_loss(model, x, y)
    loss.backward()
    header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    header[:4] = DEBUG_MAGIC, DEBUG_VERSION, B, T
    parts = [header, x.numpy().astype("<i4"), y.numpy().astype("<i4"), f32(model.logits(x))]
    parts.append(f32(loss.view(1)))
    parts += [f32(parameter.grad) for parameter in parameters_in_file_order(model)]
    path.write_bytes(b"".join(part.tobytes() for part in parts))


def train(x, y, grad_clip, **hyper):
    model = new_model()
    optimizer = make_adamw(model, lr=1e-4, beta1=0.9, eps=1e-8, **hyper)
    losses = []
    for _ in range(STEPS):
        loss = mean_loss(model, x, y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(model, grad_clip)
        optimizer.step()
    return np.array(losses, dtype=np.float32)


def main():
    torch.set_num_threads(1)
    out = Path(__file__).resolve().parent.parent / "tests" / "golden" / "llmc"
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(3002)
    x, y = torch.from_numpy(rng.randint(0, CONFIG.vocab_size, (2, B, T)))
    model = new_model()
    save_model(out / "tiny.bin", model, torch.float32)
    save_model(out / "tiny_bf16.bin", model, torch.bfloat16)
    write_debug_state(out / "tiny_debug_state.bin", model, x, y)
    losses = {name: train(x, y, **hyper) for name, hyper in SETTINGS.items()}
    save_safetensors(out / "tiny_losses.safetensors", losses, {"steps": STEPS, "lr": 1e-4})


if __name__ == "__main__":
    main()
