"""The inner optimizer: AdamW, warm-up and cosine, one gradient norm over all stages of the site."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dilocoxd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """Inner optimizer of the run. ``total_steps`` is the length of the cosine; later steps use the last rate."""

    lr: float = 3e-3
    min_lr_ratio: float = 0.1
    warmup_steps: int = 20
    total_steps: int = 1000
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Raise ConfigError for rates that cannot train."""
        if not self.lr > 0:
            raise ConfigError(f"inner learning rate {self.lr} must be above 0")
        if not 0 <= self.min_lr_ratio <= 1:
            raise ConfigError(f"min_lr_ratio {self.min_lr_ratio} must lie between 0 and 1")
        if self.warmup_steps < 0 or self.total_steps < 1:
            raise ConfigError(
                f"warmup_steps {self.warmup_steps} must be at least 0 and total_steps {self.total_steps} at least 1"
            )
        if self.clip_norm < 0:
            raise ConfigError(f"clip_norm {self.clip_norm} must be at least 0 (0 does not clip)")

    def learning_rate(self, shared_step: int, own_step: int) -> float:
        """Rate of the next step. The cosine follows the run (``shared_step``), the warm-up this optimizer's own age.

        A site that joins late starts with empty moments but at the run's place on the cosine.
        """
        progress = min(1.0, shared_step / self.total_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        rate = self.lr * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * cosine)
        return rate * min(1.0, (own_step + 1) / (self.warmup_steps + 1))


def make_adamw(params: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; fused: one kernel per stage, which matters for small layers."""
    wanted = list(params)
    groups = [
        {"params": [p for p in wanted if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in wanted if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def gradient_sum_of_squares(params: Iterable[nn.Parameter]) -> float:
    """Sum of squared gradients of the local stages, to be added up over the site before clipping."""
    grads: list[Tensor] = [p.grad for p in params if p.grad is not None]
    if not grads:
        return 0.0
    norms = torch.stack(torch._foreach_norm(grads))
    return float(norms.double().square().sum())


def clip_factor(sum_of_squares: float, max_norm: float) -> float:
    """Factor for all gradients so that their norm over the whole site is at most ``max_norm``; 0 never clips."""
    if max_norm == 0:
        return 1.0
    return min(1.0, max_norm / (math.sqrt(sum_of_squares) + 1e-6))


def scale_gradients(params: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply all gradients in place; does nothing for 1."""
    if factor != 1.0:
        grads = [p.grad for p in params if p.grad is not None]
        if grads:
            torch._foreach_mul_(grads, factor)
