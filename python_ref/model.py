"""GPT-2 in plain PyTorch: the model that llmc is compared with.

Shapes use the field's letters: B rows of T tokens, L layers of C channels, NH heads of size HS,
V vocabulary entries of which the files store Vp (V rounded up to a multiple of 128).
"""

from dataclasses import dataclass
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import skip_init

VOCAB_MULTIPLE = 128
NORM_EPS = 1e-5
INIT_STD = 0.02
IGNORED_TARGET = -1


@dataclass(frozen=True)
class GPTConfig:
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int = 1024
    vocab_size: int = 50257

    def __post_init__(self):
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name}: expected a positive number, got {value}")
        if self.n_embd % self.n_head != 0:
            raise ValueError(
                f"n_embd: expected a multiple of n_head = {self.n_head}, got {self.n_embd}"
            )

    @property
    def padded_vocab_size(self):
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


PRESETS = {
    "gpt2-124M": GPTConfig(n_layer=12, n_head=12, n_embd=768),
    "gpt2-350M": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-774M": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-1558M": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
    "gpt3-125M": GPTConfig(n_layer=12, n_head=12, n_embd=768, block_size=2048),
    "gpt3-350M": GPTConfig(n_layer=24, n_head=16, n_embd=1024, block_size=2048),
    "gpt3-760M": GPTConfig(n_layer=24, n_head=16, n_embd=1536, block_size=2048),
    "gpt3-1.3B": GPTConfig(n_layer=24, n_head=16, n_embd=2048, block_size=2048),
    "gpt3-2.7B": GPTConfig(n_layer=32, n_head=32, n_embd=2560, block_size=2048),
    "gpt3-6.7B": GPTConfig(n_layer=32, n_head=32, n_embd=4096, block_size=2048),
}


def naive_attention(q, k, v):
    """Causal attention with the (T, T) matrix written out; q, k, v: (B, NH, T, HS)."""
    T, head_size = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(head_size)  # (B, NH, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(dim=-1) @ v


def sdpa_attention(q, k, v):
    """The same through PyTorch's fused kernels."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flash_attention(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa_attention(q, k, v)


def cudnn_attention(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa_attention(q, k, v)


# sdpa leaves the kernel to PyTorch; flash and cudnn name it, on GPUs in bf16.
ATTENTIONS = {
    "naive": naive_attention,
    "sdpa": sdpa_attention,
    "flash": flash_attention,
    "cudnn": cudnn_attention,
}


class CausalSelfAttention(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.n_head = config.n_head
        self.attention = ATTENTIONS[attention]
        self.qkv = skip_init(nn.Linear, config.n_embd, 3 * config.n_embd)
        self.proj = skip_init(nn.Linear, config.n_embd, config.n_embd)

    def forward(self, x):  # (B, T, C)
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, NH, T, HS)
        return self.proj(self.attention(q, k, v).transpose(1, 2).reshape(B, T, C))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc = skip_init(nn.Linear, config.n_embd, 4 * config.n_embd)
        self.proj = skip_init(nn.Linear, 4 * config.n_embd, config.n_embd)

    def forward(self, x):  # (B, T, C)
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config, attention):
        super().__init__()
        self.ln1 = nn.LayerNorm(config.n_embd, eps=NORM_EPS)
        self.attn = CausalSelfAttention(config, attention)
        self.ln2 = nn.LayerNorm(config.n_embd, eps=NORM_EPS)
        self.mlp = Mlp(config)

    def forward(self, x):  # (B, T, C)
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A pre-norm transformer with learned positions, whose head is the token embedding.

    Parameters hold whatever was in memory until `initialise` or a file fills them.
    """

    def __init__(self, config, attention="sdpa"):
        super().__init__()
        self.config = config
        self.wte = nn.Parameter(torch.empty(config.padded_vocab_size, config.n_embd))
        self.wpe = nn.Parameter(torch.empty(config.block_size, config.n_embd))
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=NORM_EPS)
        # Added to the logits: padding columns get no probability, and no gradient.
        vocab_mask = torch.zeros(config.padded_vocab_size)
        vocab_mask[config.vocab_size :] = -math.inf
        self.register_buffer("vocab_mask", vocab_mask, persistent=False)

    @torch.no_grad()
    def initialise(self, seed):
        """Draws the weights on the CPU, from one generator, in the order every llmc model uses."""
        generator = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * self.config.n_layer)

        def draw(weight, std=INIT_STD):
            weight.copy_(torch.empty(weight.shape).normal_(0.0, std, generator=generator))

        for name, parameter in self.named_parameters():
            is_norm_weight = name.split(".")[-2:-1] in (["ln1"], ["ln2"], ["ln_f"])
            parameter.fill_(1.0 if is_norm_weight and name.endswith(".weight") else 0.0)
        draw(self.wte[: self.config.vocab_size])
        draw(self.wpe)
        for block in self.blocks:
            draw(block.attn.qkv.weight)
            draw(block.attn.proj.weight, residual_std)
            draw(block.mlp.fc.weight)
            draw(block.mlp.proj.weight, residual_std)

    def masked_logits(self, tokens):
        """tokens: (B, T) → (B, T, Vp), minus infinity in the padding columns."""
        T = tokens.shape[1]
        if T > self.config.block_size:
            raise ValueError(f"T: expected at most {self.config.block_size}, got {T}")
        x = F.embedding(tokens, self.wte) + self.wpe[:T]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte, self.vocab_mask)

    def logits(self, tokens):
        """tokens: (B, T) → (B, T, V)."""
        return self.masked_logits(tokens)[..., : self.config.vocab_size]

    def forward(self, tokens, targets):
        """tokens, targets: (B, T) → the loss of every token (B, T); 0 where the target is −1."""
        logits = self.masked_logits(tokens).flatten(0, 1)
        losses = F.cross_entropy(
            logits, targets.flatten(), ignore_index=IGNORED_TARGET, reduction="none"
        )
        return losses.view(targets.shape)
