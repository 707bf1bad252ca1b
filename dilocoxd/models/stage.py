"""What every stage of every family offers: a forward pass and its parameters under their global names."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from dilocoxd.models.cut import StageSpan


class StageModule(nn.Module):
    """One slice of a decoder: token ids or hidden states in, hidden states or logits out.

    ``named_parameters`` yields names local to this module; ``global_parameters`` the names that all sites agree on.
    """

    span: StageSpan

    def global_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this stage under their global names, in canonical order."""
        raise AssertionError(f"{type(self).__name__} must say its global parameter names")

    def forward(self, x: Tensor) -> Tensor:
        """Ids [B, T] int64 (first stage) or hidden [B, T, D] -> hidden [B, T, D] or logits [B, T, V] (last)."""
        raise AssertionError(f"{type(self).__name__} must say how it computes")
