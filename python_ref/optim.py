"""The optimizer, the gradient clip and the learning-rate schedules of llmc, through PyTorch."""

import math

import torch

SCHEDULES = ("constant", "linear", "cosine", "wsd")


def is_decayed(name):
    """Weight decay applies to the matrices: both embeddings and the weights of linear layers."""
    return name in ("wte", "wpe") or name.endswith(
        ("attn.qkv.weight", "attn.proj.weight", "mlp.fc.weight", "mlp.proj.weight")
    )


def make_adamw(model, *, lr, beta1, beta2, eps, weight_decay, fused=False):
    groups = [
        {
            "params": [p for name, p in model.named_parameters() if is_decayed(name) == decayed],
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for decayed in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=fused)


@torch.no_grad()
def clip_gradients(model, max_norm):
    """Scales all gradients so that their norm is at most `max_norm` (0: leaves them alone).

    Returns the global L2 norm before scaling, as a tensor. PyTorch's own clip_grad_norm_ adds 1e-6
    to the norm, which is visible beside a second implementation.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if max_norm > 0:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / norm, max=1.0))
    return norm


def learning_rate(
    step, *, peak, schedule, warmup_steps, max_steps, final_fraction, decay_fraction
):
    """The rate of the 0-based `step`: linear warm-up to `peak`, then the named schedule."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    final = final_fraction * peak
    if schedule == "wsd":
        decay_start = int((1.0 - decay_fraction) * max_steps)
        if step < decay_start:
            return peak
        ratio = (step - decay_start) / (max_steps - decay_start)
        return final + (1.0 - math.sqrt(ratio)) * (peak - final)
    ratio = (step - warmup_steps) / max(1, max_steps - warmup_steps)
    if schedule == "linear":
        return peak + ratio * (final - peak)
    if schedule == "cosine":
        return final + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (peak - final)
    raise ValueError(f"schedule: expected one of {SCHEDULES}, got {schedule}")
