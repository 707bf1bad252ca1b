"""Error feedback: what compression (or an exclusion) kept from the others stays here and is offered again.

    d = beta * e + u          formed at a boundary from the pseudo-gradient u = anchor - params
    r = d - own               once d is encoded; own = d as the others decode it
    included: e = r           excluded: e = r + own = d (nothing is lost)
All steps are in place on one buffer (`e` below), segment by segment. Modes: `local` is that; `paper` keeps
e = d - Delta, the literal Algorithm 2 of DiLoCoX, whose error grows without bound (ALGORITHMS 1.3 b); `none` forgets r.

r = d - own is exact in fp32 when own is 0 or within a factor of two of d (Sterbenz), which rounding to nearest gives:
then r + own = d bit for bit. Where r + own may differ from d by one rounding: values within 2**-22 relative of half a
step (fp32 and bf16 scales; never with pow2 scales), values that saturate, and codecs whose decoded value can be more
than twice d (int2, int8bins, 2-bit top-k, low rank). For several passes keep d itself until the fate is known.
Source: ALGORITHMS 4.2 hook 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dilocoxd.outer.rounding import fp32

FeedbackMode = Literal["local", "paper", "none"]


@dataclass(frozen=True, slots=True)
class ErrorFeedback:
    """How a site treats what its contribution did not carry. `beta`: decay of old feedback, 0 < beta <= 1."""

    mode: FeedbackMode = "local"
    beta: float = 1.0

    def form_(self, e: Tensor, u: Tensor) -> None:
        """e <- d = beta * e + u. With mode `none`, e is zero unless a contribution was excluded."""
        if self.beta != 1.0:
            e.mul_(fp32(self.beta))
        e.add_(u)

    def include_(self, r: Tensor, own: Tensor | None = None, delta: Tensor | None = None) -> None:
        """The contribution is part of a committed entry: turn r = d - own into the next e.

        `paper` needs the decoded own contribution and the committed mean: e = (r + own) - Delta.
        """
        if self.mode == "none":
            r.zero_()
        elif self.mode == "paper":
            if own is None or delta is None:
                raise ValueError("mode paper needs own and delta")
            r.add_(own)
            r.sub_(delta)
