"""The inner optimizer: AdamW or Muon, warm-up and cosine, one gradient norm over all stages of the site.

Muon (arXiv 2502.16982; with DiLoCo: MuLoCo, arXiv 2505.23725) steps the matrices inside the blocks along their
orthogonalised momentum; embeddings, head and vectors stay with AdamW. Each stage steps the matrices it holds: a step
needs nothing of another stage. Its step has the RMS of an AdamW step (0.2), so that one learning rate serves both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dilocoxd.errors import ConfigError
from dilocoxd.outer.schedule import cosine_rate


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
    kind: Literal["adamw", "muon"] = "adamw"
    muon_momentum: float = 0.95

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
        rate = cosine_rate(self.lr, self.min_lr_ratio, self.total_steps, shared_step)
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


class InnerOptimizer:
    """All parameters of one rank, under their global names."""

    def __init__(self, named: Mapping[str, nn.Parameter], config: OptimizerConfig) -> None:
        by_muon = {
            name: param for name, param in named.items() if config.kind == "muon" and is_block_matrix(name, param)
        }
        rest = {name: param for name, param in named.items() if name not in by_muon}
        self.parts: list[tuple[torch.optim.Optimizer, dict[str, nn.Parameter]]] = []
        """Optimizers and what each of them steps."""
        if rest:
            self.parts.append((make_adamw(rest.values(), config), rest))
        if by_muon:
            self.parts.append((make_muon(by_muon.values(), config), by_muon))

    def step(self, rate: float) -> None:
        """One step with the gradients at hand at this learning rate."""
        for optimizer, _ in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer, _ in self.parts:
            optimizer.zero_grad(set_to_none=True)


def is_block_matrix(name: str, param: nn.Parameter) -> bool:
    """What Muon is made for: weights of linear layers inside the transformer blocks."""
    return param.dim() == 2 and ".layers." in name


def make_muon(params: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Muon:
    """torch's own Muon, with steps of AdamW's size."""
    return torch.optim.Muon(
        list(params),
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.muon_momentum,
        adjust_lr_fn="match_rms_adamw",
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
