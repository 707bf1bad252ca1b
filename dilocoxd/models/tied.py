"""Tied embeddings over a pipeline: the last stage computes with a copy of the first stage's embedding.

The parameter belongs to the first stage alone: layout, optimizer, anchor and gradient norm know it once. Before a pass
the copy is made equal, after it the copy's gradient is added at home. Both travel on the control group, on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dilocoxd.models.stage import StageModule


class TiedEmbedding:
    """Does nothing for models whose head is a parameter of its own, or whose ends are in one stage."""

    def __init__(self, modules: Iterable[StageModule], *, home: int, away: int, group: Any) -> None:
        """`modules`: the stages of this rank. The first stage is on rank `home`, the last on `away`.

        Where several ranks share a stage, both ends are cut alike: each sends its part to its like.
        """
        stages = list(modules)
        self._own = next((p for p in (stage.own_embedding() for stage in stages) if p is not None), None)
        self._copy = next((p for p in (stage.borrowed_embedding() for stage in stages) if p is not None), None)
        self._home = home
        self._away = away
        self._group = group

    @torch.no_grad()
    def lend(self) -> None:
        """The copy <- the embedding. A collective call of the ranks that hold one of the two."""
        if self._own is not None and self._copy is not None:  # both ends of a V
            _part(self._copy).copy_(_part(self._own))
        elif self._own is not None:
            dist.send(_on_cpu(self._own), dst=self._away, group=self._group)
        elif self._copy is not None:
            part = _part(self._copy)
            arrived = torch.empty(part.shape)
            dist.recv(arrived, src=self._home, group=self._group)
            part.copy_(arrived)

    @torch.no_grad()
    def bring_home_gradient(self) -> None:
        """The embedding's gradient += the copy's, which is dropped. A collective call as `lend`."""
        if self._own is not None:
            if self._own.grad is None:
                self._own.grad = torch.zeros_like(self._own)
            gradient = _part(self._own.grad)
            if self._copy is not None:
                if self._copy.grad is not None:
                    gradient.add_(_part(self._copy.grad))
                self._copy.grad = None
                return
            arrived = torch.empty(gradient.shape)
            dist.recv(arrived, src=self._away, group=self._group)
            gradient.add_(arrived.to(gradient.device))
        elif self._copy is not None:
            gradient = self._copy.grad if self._copy.grad is not None else torch.zeros_like(self._copy)
            self._copy.grad = None
            dist.send(_on_cpu(gradient), dst=self._home, group=self._group)


def _on_cpu(values: Tensor) -> Tensor:
    return _part(values).to("cpu", torch.float32).contiguous()


def _part(values: Tensor) -> Tensor:
    """What of a tensor lies on this rank (torch's DTensor), sharing its memory."""
    sharded: Any = values
    return (sharded.to_local() if hasattr(values, "to_local") else values).detach()
