"""The contribution of this site that is on its way into an entry, and what is measured of that entry (machine.py)."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase.settings import PhaseSettings
from dilocoxd.wire.local.outer_worker import OwnedSegment

MEMBERS_MIN: Final = 2
"""Without the only contribution there is no entry."""


@dataclass(slots=True)
class Flight:
    """The one contribution on its way: closed by the trainers, formed, offered, settled."""

    phase: PhaseId
    base_round: RoundIndex
    inner_steps: int
    tokens: int
    lowrank_r: int
    stage: Literal["forming", "offered", "settling"] = "forming"
    content: Mapping[PhaseId, int] = field(default_factory=dict)
    """Whose work is in it, once it is formed."""
    is_included: bool = False
    forgets: bool = False
    """An entry was taken back since it was closed: if it was not offered by then it never is, and if no entry names it
    nothing of it is owed (R29.7)."""
    orders: list[int] = field(default_factory=list)
    """Orders that end when it is settled."""


def without(
    settings: PhaseSettings, lot: random.Random, round_index: RoundIndex, owned: Sequence[OwnedSegment]
) -> tuple[int, ...]:
    """Whose contribution to the entry of this round is left out to measure what it did to the held-out loss: its place
    in the entry; empty: nobody's.

    Drawn here, for all outer parts of the site at once, and so that nobody knows which of its rounds is looked at.
    `owned`: what was summed here. Source: docs/adr/0039-loss-without-one-site.md.
    """
    num_members = min((len(one.shares) for one in owned), default=0)
    is_due = settings.without_one_every > 0 and settings.evaluates(RoundIndex(round_index + 1))
    if not is_due or num_members < MEMBERS_MIN or lot.randrange(settings.without_one_every):
        return ()
    return (lot.randrange(num_members),)
