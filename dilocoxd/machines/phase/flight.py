"""The contribution of this site that is on its way into an entry (machine.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dilocoxd.ids import PhaseId, RoundIndex


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
    orders: list[int] = field(default_factory=list)
    """Orders that end when it is settled."""
