"""The inner optimizer: AdamW or Muon, warm-up and cosine, one gradient norm over all stages of the site.

Muon (arXiv 2502.16982; with DiLoCo: MuLoCo, arXiv 2505.23725) steps the matrices inside the blocks along their
orthogonalised momentum; embeddings, head and vectors stay with AdamW. Each stage steps the matrices it holds: a step
needs nothing of another stage, and of those who share a stage only the rows of one matrix after the other.
Its step has the RMS of an AdamW step (0.2), so that one learning rate serves both.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from dilocoxd.errors import ConfigError
from dilocoxd.outer.schedule import cosine_rate
from dilocoxd.trainer.parallel.local import extent_of, is_cut_by_tensor, is_sharded, local

_EMBEDDINGS: Final = frozenset({"wte", "wpe"})
"""Parts of a name that say embedding without the word."""
_HEADS: Final = frozenset({"head", "heads", "lm_head", "lm_heads"})


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


class Uncompiled(torch.optim.Optimizer):
    """Runs as it is. torch's own methods import torch._dynamo when they are called first, a second of CPU time and
    75 MB, to tell torch.compile, which never sees an optimizer here, what it must not trace."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)


class AdamW(Uncompiled, torch.optim.AdamW):
    """torch's AdamW; the gradient never flows through its step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """As torch's."""
        return cast(float | None, inspect.unwrap(torch.optim.Adam.step)(self, closure))


class Muon(Uncompiled, torch.optim.Muon):
    """torch's Muon."""


class GatheringMuon(Muon):
    """The same step, to the bit, for matrices that lie in parts on several ranks.

    The momentum is updated where it lies; then one matrix at a time is gathered and orthogonalised on every rank, which
    keeps what it holds of it. torch's own step on such matrices sums in 16 bits over the ranks and ends up to 3% of
    a step away.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """As torch's; `closure` is not used here."""
        for group in self.param_groups:
            found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
            self._init_group(group, *found)
            for param, grad, momentum in zip(*found, strict=True):
                momentum.lerp_(grad, 1 - group["momentum"])
                update = grad.lerp(momentum, group["momentum"]).full_tensor()
                whole = _zeropower_via_newtonschulz(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], param.shape)
                part = local(param)
                part.mul_(1 - group["lr"] * group["weight_decay"])
                part.add_(extent_of(param).of_matrix(whole), alpha=-rate)
        return None


def make_adamw(params: Iterable[nn.Parameter], config: OptimizerConfig) -> AdamW:
    """AdamW with weight decay on matrices only; fused: one kernel per stage, which matters for small layers."""
    # What one kernel steps must lie on one mesh: of tensor parallel layers only the matrices are cut.
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for param in params:
        groups.setdefault((param.dim() < 2, is_cut_by_tensor(param)), []).append(param)
    return AdamW(
        [
            {"params": group, "weight_decay": 0.0 if is_vector else config.weight_decay}
            for (is_vector, _), group in sorted(groups.items(), key=lambda item: item[0])
        ],
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
        for _, named in self.parts:
            for param in named.values():
                param.grad = None


def is_block_matrix(name: str, param: Tensor) -> bool:
    """What Muon is made for: weights of linear layers inside the transformer blocks.

    Families name their blocks differently (layers, h, blocks); that they number them is common to all (models/own.py
    asks it of own models). Numbered embeddings and heads stay with AdamW.
    """
    if param.dim() != 2:
        return False
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    if number is None or any("embed" in part or part in _EMBEDDINGS for part in parts):
        return False
    # Only in front of the number: behind it, `blocks.0.heads.1` is a head of attention.
    return _HEADS.isdisjoint(parts[:number])


def make_muon(params: Iterable[nn.Parameter], config: OptimizerConfig) -> Muon:
    """torch's own Muon, with steps of AdamW's size."""
    matrices = list(params)
    kind = GatheringMuon if any(map(is_sharded, matrices)) else Muon
    return kind(
        matrices,
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.muon_momentum,
        adjust_lr_fn="match_rms_adamw",
    )


def gradient_squares(params: Iterable[nn.Parameter]) -> Tensor:
    """Sum of squared gradients that lie here, float64 on their device: nothing waits for the device yet."""
    grads = _gradients(params)
    if not grads:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(torch._foreach_norm(grads)).double().square().sum()


def gradient_sum_of_squares(params: Iterable[nn.Parameter]) -> float:
    """The same as a number, to be added up over the site before clipping."""
    return float(gradient_squares(params))


def _gradients(params: Iterable[nn.Parameter]) -> list[Tensor]:
    """Parts of the gradients that lie on this rank and have elements."""
    found = [local(p.grad) for p in params if p.grad is not None]
    return [grad for grad in found if grad.numel()]


def clip_factor(sum_of_squares: float, max_norm: float) -> float:
    """Factor for all gradients so that their norm over the whole site is at most ``max_norm``; 0 never clips."""
    if max_norm == 0:
        return 1.0
    return min(1.0, max_norm / (math.sqrt(sum_of_squares) + 1e-6))


def scale_gradients(params: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply all gradients in place; does nothing for 1."""
    if factor != 1.0:
        grads = _gradients(params)
        if grads:
            torch._foreach_mul_(grads, factor)
