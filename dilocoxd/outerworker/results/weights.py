"""How much each contribution of an entry weighs in its mean: one place for owners and for those who check them."""

from __future__ import annotations

from collections.abc import Sequence

from dilocoxd.outer.rounding import age_factor, mean_weights, participation
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.wire.entry import RAMP_WHOLE
from dilocoxd.wire.local.outer_worker import Share


def share_weights(plan: OuterPlan, shares: Sequence[Share]) -> list[float]:
    """fp32 weights in the order of summation (X2, X9)."""
    num_counted = sum(share.ramp == RAMP_WHOLE for share in shares)
    part = participation(num_counted, max(share.missing for share in shares))
    factors = [part * age_factor(share.age, plan.age_decay, plan.age_expected) for share in shares]
    return mean_weights([share.tokens for share in shares], factors, [share.ramp for share in shares])
