"""What every stage of every family offers: a forward pass and its parameters under their global names.

Documents may share a sample without seeing each other. One begins behind the store's end token and at the start of each
sample. Positions begin anew with it, so that it is computed as if it were alone, whatever a model makes of positions.

The logits of a batch may be the largest thing a trainer holds. A last stage that is given the targets computes them
for a few positions at a time, and again in the backward pass.
"""

# Shape legend: B sequences, T positions, D hidden size, V vocabulary.
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dilocoxd.errors import ConfigError
from dilocoxd.models.cut import StageSpan


class Vocabulary:
    """How a last stage makes a loss of logits: here all of them are on this rank, and nobody else has any."""

    is_whole: ClassVar[bool] = True
    """Whether this rank has the logits of all tokens."""

    def entered(self, hidden: Tensor) -> Tensor:
        """Hidden states on their way to the head."""
        return hidden

    def summed_loss(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """Sum of the cross entropies in nats over the targets that count, float32 []; logits are float32."""
        return functional.cross_entropy(logits_NV, targets_N, reduction="sum")


class StageModule(nn.Module):
    """One slice of a decoder: token ids or hidden states in, hidden states or logits out.

    ``named_parameters`` yields names local to this module; ``global_parameters`` the names that all sites agree on.
    """

    span: StageSpan
    takes_positions: ClassVar[bool] = False
    """Whether `forward` has a second argument `positions_BT`, int64 or None: where each token stands in its document.

    Tokens of one document then do not see those of another; a document begins at each 0. None: all see all before them.
    """

    takes_targets: ClassVar[bool] = False
    """Whether `logits` is there, and `forward` has an argument `targets_BT`, int64 or None: a last stage that is given
    it returns `summed_loss`."""

    loss_chunk_tokens: int = 0
    """Positions that have logits at a time in `summed_loss`; 0: all."""

    vocabulary: Vocabulary = Vocabulary()
    """Where the logits of a last stage are."""

    def global_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this stage under their global names, in canonical order."""
        raise AssertionError(f"{type(self).__name__} must say its global parameter names")

    def forward(self, x: Tensor) -> Tensor:
        """Ids [B, T] int64 (first stage) or hidden [B, T, D] -> hidden [B, T, D] or logits [B, T, V] (last)."""
        raise AssertionError(f"{type(self).__name__} must say how it computes")

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """Logits [.., V] of what the last layer and the norm of a last stage gave, [.., D]."""
        raise AssertionError(f"{type(self).__name__} does not say how it makes logits")

    def output(self, hidden_BTD: Tensor, targets_BT: Tensor | None) -> Tensor:
        """What `forward` returns of what the layers gave: hidden states [B, T, D]; of a last stage logits [B, T, V], or
        `summed_loss` if it was given targets."""
        if not self.span.is_last:
            return hidden_BTD
        if targets_BT is not None:
            return self.summed_loss(hidden_BTD, targets_BT)
        assert self.vocabulary.is_whole, "logits are nowhere whole"
        return self.logits(hidden_BTD)

    def summed_loss(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum of the cross entropies in nats over the targets that count, float32 [].

        Differs from that of all logits at once by the order of the sum.
        """
        hidden_ND, targets_N = self.vocabulary.entered(hidden_BTD).flatten(0, 1), targets_BT.flatten()
        size = self.loss_chunk_tokens
        if not size:
            return self._loss_of_piece(hidden_ND, targets_N)
        losses = [
            checkpoint(
                self._loss_of_piece,
                hidden_ND[start : start + size],
                targets_N[start : start + size],
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for start in range(0, len(targets_N), size)
        ]
        return torch.stack(losses).sum()

    def _loss_of_piece(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        return self.vocabulary.summed_loss(self.logits(hidden_ND).float(), targets_N)

    def frozen_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of a model under an adapter, under their global names: in no layout, read from files."""
        return iter(())

    def blocks(self) -> Iterator[nn.Module]:
        """The transformer blocks of this stage, in order: the units of sharding and of activation checkpointing."""
        raise ConfigError(
            f"{type(self).__name__} does not say what its blocks are, which parallel.shard, parallel.replicate and"
            " activation_checkpointing need; leave these at their defaults"
        )

    def token_matrices(self) -> Iterator[tuple[nn.Module, str]]:
        """Matrices with a row for each token that this stage looks up or makes logits with: the module of each, and its
        name there. A tied one is there once."""
        return iter(())

    def borrowed_embedding(self) -> nn.Parameter | None:
        """Of a last stage with tied embeddings that is not the first: its copy of the first stage's parameter.

        It is in no layout and no optimizer: the pipeline keeps it equal and brings its gradient home.
        """
        return None

    def own_embedding(self) -> nn.Parameter | None:
        """Of a first stage whose embedding the last stage borrows."""
        return None

    def new_cache(self) -> Any | None:
        """An empty cache of keys and values for `extend`, on a whole model; None: this family has none."""
        return None

    def extend(self, ids_BT: Tensor, cache: Any) -> Tensor:
        """Logits [B, T, V] of tokens that follow those in `cache`, which grows by them.

        Several at a time only into an empty cache, then one by one.
        """
        raise AssertionError(f"{type(self).__name__} has no cache")

    def allocate(self, device: torch.device) -> None:
        """Memory on ``device`` for all parameters, uninitialised.

        nn.Module.to_empty does the same by way of sympy, which takes 0.3 s of CPU to import.
        """
        for module in self.modules():
            for name, param in module.named_parameters(recurse=False):
                empty = torch.empty(param.shape, dtype=param.dtype, device=device)
                module.register_parameter(name, nn.Parameter(empty))


def rows_here(weight: Tensor) -> Tensor:
    """Of a matrix whose rows lie on several ranks (torch's DTensor) those that lie here, with their gradient."""
    cut: Any = weight
    here: Tensor = cut.to_local() if hasattr(weight, "to_local") else weight
    return here


def positions_of(ids_BT: Tensor, end: int) -> Tensor:
    """Place of each token in its document, int64 [B, T]: 0 for the first of the sample and behind each token `end`."""
    begins_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    begins_BT[:, 1:] = ids_BT[:, :-1] == end
    places_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
    return places_BT - torch.where(begins_BT, places_BT, 0).cummax(dim=1).values


def document_mask(positions_BT: Tensor) -> Tensor:
    """What each position sees, bool [B, 1, T, T]: itself and what precedes it in its document, which begins at 0."""
    numbers_BT = (positions_BT == 0).cumsum(dim=1)
    is_same = numbers_BT[:, None, :, None] == numbers_BT[:, None, None, :]
    return is_same.tril()
