"""Decides who owes which segment payloads in one attempt, pass by pass, and what to do when one arrives or fails.

Reduce-scatter, then gather: contributors send each segment to its owner, the owner reduces it and sends the result to
all members. Inputs of the first pass outlive the attempt (`Inbox`): they depend only on (peer, phase). Source:
protocol/07-exchange.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dilocoxd.ids import Digest, Monotonic, PeerId, PhaseId
from dilocoxd.rounds.commands import Command, OrderPass, OrderReduce, OwnedReduction, ReduceShare, SendSegment
from dilocoxd.rounds.events import (
    KIND_CONTRIBUTION,
    KIND_RESULT,
    Destination,
    PassPrepared,
    Reduced,
    Refusal,
    SegmentKey,
)
from dilocoxd.rounds.limits import PayloadShape
from dilocoxd.wire.entry import Contribution
from dilocoxd.wire.messages import Propose

OWN_SLOT = -1


@dataclass(slots=True)
class Inbox:
    """Which contributor has which INBOX slot, and which first-pass payloads lie there."""

    num_slots: int
    slots: dict[PeerId, int] = field(default_factory=dict)
    phases: dict[PeerId, PhaseId] = field(default_factory=dict)
    kept: dict[PeerId, dict[int, Digest]] = field(default_factory=dict)

    def open(self, contributions: tuple[Contribution, ...], me: PeerId) -> None:
        """Give every other contributor a slot; forget payloads of phases that are not offered any more."""
        wanted = {c.peer: c.phase for c in contributions if c.peer != me}
        for peer in [p for p in self.slots if p not in wanted]:
            if len(self.slots) + len(wanted.keys() - self.slots.keys()) > self.num_slots:
                self._drop(peer)
        free = iter(sorted(set(range(self.num_slots)) - set(self.slots.values())))
        for peer, phase in sorted(wanted.items()):
            if peer not in self.slots:
                self.slots[peer] = next(free)
            if self.phases.get(peer) != phase:
                self.phases[peer] = phase
                self.kept[peer] = {}

    def over(self, last_phases: Mapping[PeerId, PhaseId]) -> tuple[int, ...]:
        """Slots whose contribution is in the chain, or can never be: what lies there is of no use any more."""
        return tuple(self.slots[p] for p, phase in self.phases.items() if last_phases.get(p, -1) >= phase)

    def _drop(self, peer: PeerId) -> None:
        del self.slots[peer]
        self.phases.pop(peer, None)
        self.kept.pop(peer, None)

    def holds(self, contribution: Contribution, segment: int) -> bool:
        return self.phases.get(contribution.peer) == contribution.phase and segment in self.kept[contribution.peer]

    def keep(self, peer: PeerId, phase: PhaseId | None, segment: int, sha256: Digest) -> bool:
        """A first-pass payload was stored in the peer's slot. False if the slot belongs to another phase by now."""
        if phase is None or self.phases.get(peer) != phase:
            return False
        self.kept[peer][segment] = sha256
        return True


class Exchange:
    """One accepted proposal. Methods return what to do next; nothing here waits."""

    def __init__(
        self, me: PeerId, shape: PayloadShape, propose: Propose, inbox: Inbox, now: Monotonic, missing: int = 0
    ) -> None:
        """`missing`: contributors that the proposal is short of (ChainView.missing)."""
        self.me = me
        self.shape = shape
        self.propose = propose
        self.missing = missing
        self.inbox = inbox
        self.by_peer = {c.peer: c for c in propose.contributions}
        self.group = tuple(self.by_peer)
        self.members = (*self.group, *propose.observers)
        self.is_contributor = me in self.by_peer
        self.owners = tuple(self.group[index] for index in propose.owners)
        self.owned = tuple(s for s, owner in enumerate(self.owners) if owner == me)
        self.pass_index = 0
        self.outbox: dict[int, tuple[Digest, ...]] = {}
        self.late_inputs: dict[tuple[int, int], dict[PeerId, Digest]] = {}
        """(pass, segment) -> payload hashes, for passes after the first (their payloads depend on the attempt)."""
        self.ordered: dict[tuple[int, int], tuple[ReduceShare, ...]] = {}
        self.results: dict[tuple[int, int], Digest] = {}
        self.transfers: dict[tuple[PeerId, SegmentKey], tuple[Digest, Monotonic | None]] = {}
        """Outgoing and unacknowledged: hash, and when to try again (None = running)."""
        self.delivered: set[tuple[PeerId, SegmentKey]] = set()
        self.progress_at = now
        self.is_check_ordered = self.is_checked = False
        self.signs: set[PeerId] = set()
        """Members that have shown that they know of this attempt."""

    def check_results(self) -> list[Command]:
        """Order, once, to see whether all results decode; PassPrepared of the pass behind the last one says yes."""
        if self.is_check_ordered:
            return []
        self.is_check_ordered = True
        p = self.propose
        return [OrderPass(p.round, p.attempt, self.shape.num_passes, p.lowrank_r)]

    def has_sign_of(self, peer: PeerId) -> bool:
        return peer in self.signs

    def start(self, segment_hashes: tuple[Digest, ...]) -> list[Command]:
        """First pass: what we owe to owners, and the segments whose inputs are all here already."""
        if not self.is_contributor:
            return []
        self.outbox[0] = segment_hashes
        return [*self._send_contribution(0), *self._reduce_ready(0)]

    def key(self, kind: int, pass_index: int, segment: int) -> SegmentKey:
        phase = self.by_peer[self.me].phase if kind == KIND_CONTRIBUTION else None
        p = self.propose
        return SegmentKey(kind, p.round, p.attempt, pass_index, segment, phase)

    def _send(self, peer: PeerId, key: SegmentKey, sha256: Digest) -> list[Command]:
        if (peer, key) in self.transfers or (peer, key) in self.delivered:
            return []
        self.transfers[peer, key] = (sha256, None)
        return [SendSegment(peer, key, sha256, self.propose.lowrank_r)]

    def _send_contribution(self, pass_index: int) -> list[Command]:
        commands: list[Command] = []
        for segment, owner in enumerate(self.owners):
            if owner != self.me:
                key = self.key(KIND_CONTRIBUTION, pass_index, segment)
                commands += self._send(owner, key, self.outbox[pass_index][segment])
        return commands

    def _has_input(self, pass_index: int, segment: int, peer: PeerId) -> bool:
        if peer == self.me:
            return pass_index in self.outbox
        if pass_index == 0:
            return self.inbox.holds(self.by_peer[peer], segment)
        return peer in self.late_inputs.get((pass_index, segment), {})

    def _reduce_ready(self, pass_index: int) -> list[Command]:
        commands: list[Command] = []
        for segment in self.owned:
            commands += self._reduce_if_ready(pass_index, segment)
        return commands

    def _reduce_if_ready(self, pass_index: int, segment: int) -> list[Command]:
        if (pass_index, segment) in self.ordered:
            return []
        if not all(self._has_input(pass_index, segment, peer) for peer in self.group):
            return []
        p = self.propose
        slots = {self.me: OWN_SLOT, **self.inbox.slots}
        shares = tuple(
            ReduceShare(c.peer, slots[c.peer], c.tokens, p.round - c.base_round, self.missing) for c in p.contributions
        )
        self.ordered[pass_index, segment] = shares
        return [OrderReduce(p.round, p.attempt, pass_index, segment, shares, p.lowrank_r)]

    def destination(self, peer: PeerId, key: SegmentKey) -> Destination | Refusal:
        """Where bytes of the running attempt belong."""
        if not (key.pass_index < self.shape.num_passes and key.segment < self.shape.num_segments):
            return Refusal("no such segment", is_transient=False)
        owner = self.owners[key.segment]
        place = (key.pass_index, key.segment)
        if key.kind == KIND_RESULT:
            if peer != owner or owner == self.me:
                return Refusal("not the owner of this segment", is_transient=False)
            if place in self.results:
                return Refusal("here already", is_transient=False, is_held=True)
            return Destination(None, key.pass_index, key.segment, self.propose.lowrank_r)
        contribution = self.by_peer.get(peer)
        if owner != self.me or contribution is None or contribution.phase != key.phase or peer == self.me:
            return Refusal("this contribution is not wanted here", is_transient=False)
        if self._has_input(key.pass_index, key.segment, peer):
            return Refusal("here already", is_transient=False, is_held=True)
        return Destination(self.inbox.slots[peer], key.pass_index, key.segment, self.propose.lowrank_r)

    def on_segment(self, peer: PeerId, key: SegmentKey, sha256: Digest, now: Monotonic) -> list[Command]:
        """A segment of this attempt was stored. Late and double ones change nothing."""
        if not isinstance(self.destination(peer, key), Destination):
            return []
        self.progress_at = now
        self.signs.add(peer)
        if key.kind == KIND_RESULT:
            return self._on_result(key.pass_index, key.segment, sha256)
        if key.pass_index == 0:
            self.inbox.keep(peer, key.phase, key.segment, sha256)
        else:
            self.late_inputs.setdefault((key.pass_index, key.segment), {})[peer] = sha256
        return self._reduce_if_ready(key.pass_index, key.segment)

    def _on_result(self, pass_index: int, segment: int, sha256: Digest) -> list[Command]:
        self.results[pass_index, segment] = sha256
        if not self.is_contributor or pass_index != self.pass_index or not self._pass_complete(pass_index):
            return []
        if pass_index + 1 == self.shape.num_passes:
            return []
        self.pass_index += 1
        p = self.propose
        return [OrderPass(p.round, p.attempt, self.pass_index, p.lowrank_r)]

    def _pass_complete(self, pass_index: int) -> bool:
        return all((pass_index, segment) in self.results for segment in range(self.shape.num_segments))

    def on_reduced(self, event: Reduced, now: Monotonic) -> list[Command]:
        """Our result segment is encoded: it is a result for us as well, and goes to every other member."""
        self.progress_at = now
        key = self.key(KIND_RESULT, event.pass_index, event.segment)
        commands: list[Command] = []
        for peer in self.members:
            if peer != self.me:
                commands += self._send(peer, key, event.sha256)
        return commands + self._on_result(event.pass_index, event.segment, event.sha256)

    def on_prepared(self, event: PassPrepared, now: Monotonic) -> list[Command]:
        self.progress_at = now
        if event.pass_index == self.shape.num_passes:
            self.is_checked = True
            return []
        self.outbox[event.pass_index] = event.segment_hashes
        return [*self._send_contribution(event.pass_index), *self._reduce_ready(event.pass_index)]

    def on_sent(self, peer: PeerId, key: SegmentKey, now: Monotonic) -> None:
        if self.transfers.pop((peer, key), None) is not None:
            self.delivered.add((peer, key))
            self.signs.add(peer)
            if peer in self.by_peer:
                self.progress_at = now

    def on_failed(self, peer: PeerId, key: SegmentKey, retry_at: Monotonic) -> None:
        if (peer, key) in self.transfers:
            self.transfers[peer, key] = (self.transfers[peer, key][0], retry_at)

    def retry(self, now: Monotonic) -> list[Command]:
        """Transfers whose pause is over."""
        due = [(p, k, sha) for (p, k), (sha, at) in self.transfers.items() if at is not None and at <= now]
        for peer, key, sha256 in due:
            self.transfers[peer, key] = (sha256, None)
        return [SendSegment(peer, key, sha256, self.propose.lowrank_r) for peer, key, sha256 in due]

    def next_retry(self) -> Monotonic | None:
        return min((at for _, at in self.transfers.values() if at is not None), default=None)

    @property
    def result_hashes(self) -> tuple[Digest, ...] | None:
        """All results in (pass, segment) order, None while one is missing."""
        if len(self.results) < self.shape.num_passes * self.shape.num_segments:
            return None
        return tuple(sha256 for _, sha256 in sorted(self.results.items()))

    def has_all_inputs(self) -> bool:
        """Whether every segment that we own has been reduced or could be, in the current pass."""
        return all((self.pass_index, segment) in self.ordered for segment in self.owned)

    def owed_by(self) -> frozenset[PeerId]:
        """Who has not given us an input of a segment that we own; if nobody, the owners of results that we lack."""
        inputs = {
            peer
            for segment in self.owned
            if (self.pass_index, segment) not in self.ordered
            for peer in self.group
            if not self._has_input(self.pass_index, segment, peer)
        }
        if inputs:
            return frozenset(inputs - {self.me})
        current = min((p for p in range(self.shape.num_passes) if not self._pass_complete(p)), default=0)
        lacking = {owner for segment, owner in enumerate(self.owners) if (current, segment) not in self.results}
        return frozenset(lacking - {self.me})

    @property
    def owned_reductions(self) -> tuple[OwnedReduction, ...]:
        return tuple(OwnedReduction(p, s, shares) for (p, s), shares in sorted(self.ordered.items()))
