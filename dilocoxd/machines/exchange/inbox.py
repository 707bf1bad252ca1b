"""Decides which contributor has which INBOX slot, and remembers which first-pass payloads lie there.

They outlive the attempt: a payload of the first pass depends only on (peer, phase). Source: protocol/07-exchange.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dilocoxd.ids import Digest, PeerId, PhaseId
from dilocoxd.wire.entry import Contribution


@dataclass(slots=True)
class Inbox:
    """Which contributor has which INBOX slot, and which first-pass payloads lie there."""

    num_slots: int
    slots: dict[PeerId, int] = field(default_factory=dict)
    phases: dict[PeerId, PhaseId] = field(default_factory=dict)
    roots: dict[PeerId, bytes] = field(default_factory=dict)
    """Of the payloads that are kept: what is stored under another one is not part of what is offered now."""
    kept: dict[PeerId, dict[int, Digest]] = field(default_factory=dict)

    def open(self, contributions: tuple[Contribution, ...], me: PeerId) -> None:
        """Give every other contributor a slot; forget payloads of phases that are not offered any more."""
        wanted = {c.peer: (c.phase, c.payload_root) for c in contributions if c.peer != me}
        for peer in [p for p in self.slots if p not in wanted]:
            if len(self.slots) + len(wanted.keys() - self.slots.keys()) > self.num_slots:
                self._drop(peer)
        free = iter(sorted(set(range(self.num_slots)) - set(self.slots.values())))
        for peer, (phase, root) in sorted(wanted.items()):
            if peer not in self.slots:
                self.slots[peer] = next(free)
            if (self.phases.get(peer), self.roots.get(peer)) != (phase, root):
                self.phases[peer], self.roots[peer] = phase, root
                self.kept[peer] = {}

    def over(self, last_phases: Mapping[PeerId, PhaseId]) -> tuple[int, ...]:
        """Slots whose contribution is in the chain, or can never be: what lies there is of no use any more."""
        return tuple(self.slots[p] for p, phase in self.phases.items() if last_phases.get(p, -1) >= phase)

    def _drop(self, peer: PeerId) -> None:
        del self.slots[peer]
        self.phases.pop(peer, None)
        self.roots.pop(peer, None)
        self.kept.pop(peer, None)

    def holds(self, contribution: Contribution, segment: int) -> bool:
        return self.phases.get(contribution.peer) == contribution.phase and segment in self.kept[contribution.peer]

    def keep(self, peer: PeerId, phase: PhaseId | None, segment: int, sha256: Digest) -> bool:
        """A first-pass payload was stored in the peer's slot. False if the slot belongs to another phase by now."""
        if phase is None or self.phases.get(peer) != phase:
            return False
        self.kept[peer][segment] = sha256
        return True
