"""Reads and writes llm.c's GPT-2 model files: version 3 is float32, version 5 is bfloat16.

256 little-endian int32 of header (magic, version, block_size, V, L, NH, C, Vp, then zeros), then
the tensors in the order below, each contiguous over all layers. The padding rows of wte are stored.
"""

import numpy as np
import torch

from model import GPT, GPTConfig

MAGIC = 20240326
VERSION_DTYPES = {3: torch.float32, 5: torch.bfloat16}
HEADER_BYTES = 1024
LAYER_TENSORS = (
    "ln1.weight",
    "ln1.bias",
    "attn.qkv.weight",
    "attn.qkv.bias",
    "attn.proj.weight",
    "attn.proj.bias",
    "ln2.weight",
    "ln2.bias",
    "mlp.fc.weight",
    "mlp.fc.bias",
    "mlp.proj.weight",
    "mlp.proj.bias",
)


def parameters_in_file_order(model):
    named = dict(model.named_parameters())
    names = ["wte", "wpe"]
    names += [f"blocks.{i}.{t}" for t in LAYER_TENSORS for i in range(model.config.n_layer)]
    names += ["ln_f.weight", "ln_f.bias"]
    return [named[name] for name in names]


def save_model(path, model, dtype=torch.float32):
    versions = {d: v for v, d in VERSION_DTYPES.items()}
    c = model.config
    header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
    header[:8] = (
        MAGIC,
        versions[dtype],
        c.block_size,
        c.vocab_size,
        c.n_layer,
        c.n_head,
        c.n_embd,
        c.padded_vocab_size,
    )
    with open(path, "wb") as file:
        file.write(header.tobytes())
        for parameter in parameters_in_file_order(model):
            values = parameter.detach().to("cpu", dtype).contiguous()
            file.write(values.view(torch.uint8).numpy().tobytes())


def load_model(path, attention="sdpa"):
    """Returns a float32 model on the CPU, whatever the file's precision."""
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES), dtype="<i4")
        if len(header) != HEADER_BYTES // 4 or header[0] != MAGIC:
            raise ValueError(f"{path}: expected an llm.c model file, got another magic number")
        version, block_size, vocab_size, n_layer, n_head, n_embd, padded = map(int, header[1:8])
        if version not in VERSION_DTYPES:
            raise ValueError(f"{path}: expected version 3 or 5, got {version}")
        config = GPTConfig(n_layer, n_head, n_embd, block_size, vocab_size)
        if padded != config.padded_vocab_size:
            raise ValueError(
                f"{path}: expected a vocabulary padded to {config.padded_vocab_size}, got {padded}"
            )
        model = GPT(config, attention)
        dtype = VERSION_DTYPES[version]
        with torch.no_grad():
            for parameter in parameters_in_file_order(model):
                data = bytearray(file.read(parameter.numel() * dtype.itemsize))
                if len(data) != parameter.numel() * dtype.itemsize:
                    raise ValueError(f"{path}: expected {n_layer} whole layers, got a shorter file")
                parameter.copy_(torch.frombuffer(data, dtype=dtype).view(parameter.shape))
        if file.read(1):
            raise ValueError(f"{path}: expected the file to end after the last tensor")
    return model
