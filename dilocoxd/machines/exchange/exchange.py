"""Decides who owes which segment payloads in one attempt, pass by pass, and what to do when one arrives or fails.

Reduce-scatter, then gather: contributors send each segment to its owner, the owner reduces it and sends the result to
all members. Where everything is gathered (X11) every member is the owner of all segments for itself.

Inputs of the first pass outlive the attempt (`Inbox`): they depend only on (peer, phase). Source:
protocol/07-exchange.md.
"""

from typing import Final

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.exchange.counts import SegmentCounts
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced, SegmentReceived
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.exchange.orders import OrderPass, OrderReduce, SegmentOrder, SendSegment
from dilocoxd.machines.exchange.roots import Contradiction, PassRoots
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, Destination, Refusal, SegmentKey
from dilocoxd.machines.exchange.sends import OpenSends
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.wire.entry import RAMP_WHOLE
from dilocoxd.wire.local.outer_worker import OwnedSegment, Share
from dilocoxd.wire.messages import Propose

OWN_SLOT = -1


class Exchange:
    """One accepted proposal. Methods return what to do next; nothing here waits."""

    def __init__(
        self,
        me: PeerId,
        shape: PayloadShape,
        propose: Propose,
        inbox: Inbox,
        missing: int = 0,
        ramps: tuple[int, ...] = (),
    ) -> None:
        """`missing`: contributors that the proposal is short of (ChainView.missing); `ramps`: ChainView.ramps."""
        self.me: Final = me
        self.shape: Final = shape
        self.propose: Final = propose
        self.missing: Final = missing
        self.ramps: Final = ramps
        self.inbox: Final = inbox
        self.by_peer: Final = {c.peer: c for c in propose.contributions}
        self.group: Final = tuple(self.by_peer)
        self.members: Final = (*self.group, *propose.observers)
        self.is_contributor: Final = me in self.by_peer
        self.owners: Final = (
            (me,) * shape.num_segments if shape.is_gathered else tuple(self.group[index] for index in propose.owners)
        )
        """Whose sum we wait for, or make."""
        self.owned: Final = tuple(s for s, owner in enumerate(self.owners) if owner == me)
        self._num_partners: Final = len({*self.owners, *(self.group if self.owned else ())} - {me})
        """Contributors that we bring something, or that bring us something."""
        self.pass_index = 0
        self.outbox: dict[int, tuple[Digest, ...]] = {}
        self.roots: Final = PassRoots(propose.contributions)
        self.late_inputs: dict[tuple[int, int], dict[PeerId, Digest]] = {}
        """(pass, segment) -> payload hashes, for passes after the first (their payloads depend on the attempt)."""
        self.ordered: dict[tuple[int, int], tuple[Share, ...]] = {}
        self.results: dict[tuple[int, int], Digest] = {}
        self.transfers: Final = OpenSends()
        self._counts: Final = SegmentCounts(me, self.owners, shape.num_passes)
        for peer in self.group if self.owned else ():
            if peer != me:  # what lies here since an earlier attempt
                here = sum(inbox.holds(self.by_peer[peer], segment) for segment in self.owned)
                self._counts.input_came(0, peer, here)
        self._result_hashes: tuple[Digest, ...] | None = None
        self.num_moved = 0
        """Counts whatever brings it nearer to its end."""
        self.is_check_ordered = self.is_checked = False
        self.is_audit_ordered = self.is_audited = False
        self.signs: set[PeerId] = set()
        """Members that have shown that they know of this attempt."""

    def check_results(self) -> list[SegmentOrder]:
        """Order, once, to see whether all results decode; PassPrepared of the pass behind the last one says yes."""
        if self.is_check_ordered:
            return []
        self.is_check_ordered = True
        p = self.propose
        return [OrderPass(p.round, p.attempt, self.shape.num_passes, p.lowrank_r)]

    def is_of(self, round_index: RoundIndex, attempt: Attempt) -> bool:
        """Whether it is that of this attempt."""
        return (self.propose.round, self.propose.attempt) == (round_index, attempt)

    def has_sign_of(self, peer: PeerId) -> bool:
        return peer in self.signs

    def start(self, segment_hashes: tuple[Digest, ...]) -> list[SegmentOrder]:
        """First pass: what we owe to owners, and the segments whose inputs are all here already."""
        if not self.is_contributor:
            return []
        self._offer(0, segment_hashes)
        return [*self._send_contribution(0), *self._reduce_ready(0)]

    def _offer(self, pass_index: int, segment_hashes: tuple[Digest, ...]) -> Contradiction | None:
        self.outbox[pass_index] = segment_hashes
        return self.roots.keep_own(self.me, pass_index, segment_hashes)

    def key(self, kind: int, pass_index: int, segment: int) -> SegmentKey:
        phase = self.by_peer[self.me].phase if kind == KIND_CONTRIBUTION else None
        p = self.propose
        return SegmentKey(kind, p.round, p.attempt, pass_index, segment, phase)

    def _send(self, peer: PeerId, key: SegmentKey, sha256: Digest) -> list[SegmentOrder]:
        return [self._sending(peer, key, sha256)] if self.transfers.begin(peer, key, sha256) else []

    def _sending(self, peer: PeerId, key: SegmentKey, sha256: Digest) -> SendSegment:
        place = (key.pass_index, key.segment)
        is_result = key.kind == KIND_RESULT
        root = self.roots.summands(key.pass_index) if is_result else self.roots.of(key.pass_index, self.me)
        assert root is not None, f"sends {place} before it has it"
        return SendSegment(
            peer, key, sha256, self.propose.lowrank_r, root, () if is_result else self.roots.own_proof(*place)
        )

    def _send_contribution(self, pass_index: int) -> list[SegmentOrder]:
        commands: list[SegmentOrder] = []
        for segment, owner in enumerate(self.owners):
            key = self.key(KIND_CONTRIBUTION, pass_index, segment)
            for peer in self.members if self.shape.is_gathered else (owner,):
                if peer != self.me:
                    commands += self._send(peer, key, self.outbox[pass_index][segment])
        return commands

    def _has_input(self, pass_index: int, segment: int, peer: PeerId) -> bool:
        if peer == self.me:
            return pass_index in self.outbox
        if pass_index == 0:
            return self.inbox.holds(self.by_peer[peer], segment)
        return peer in self.late_inputs.get((pass_index, segment), {})

    def _reduce_ready(self, pass_index: int) -> list[SegmentOrder]:
        commands: list[SegmentOrder] = []
        for segment in self.owned:
            commands += self._reduce_if_ready(pass_index, segment)
        return commands

    def _reduce_if_ready(self, pass_index: int, segment: int) -> list[SegmentOrder]:
        if (pass_index, segment) in self.ordered or (pass_index and (pass_index - 1, segment) not in self.results):
            return []  # an observer that sums for itself may have all shares of a pass before it has the one before
        if not all(self._has_input(pass_index, segment, peer) for peer in self.group):
            return []
        p = self.propose
        slots = {self.me: OWN_SLOT, **self.inbox.slots}
        ramps = self.ramps or (RAMP_WHOLE,) * len(self.group)
        shares = tuple(
            Share(slots[c.peer], c.tokens, p.round - c.base_round, self.missing, ramp)
            for c, ramp in zip(p.contributions, ramps, strict=True)
        )
        self.ordered[pass_index, segment] = shares
        self._counts.was_ordered(pass_index)
        return [OrderReduce(p.round, p.attempt, pass_index, segment, self.group, shares, p.lowrank_r)]

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
            root = self.roots.summands(key.pass_index)
            return Destination(None, *place, self.propose.lowrank_r, root, self.shape.num_segments)
        contribution = self.by_peer.get(peer)
        if owner != self.me or contribution is None or contribution.phase != key.phase or peer == self.me:
            return Refusal("this contribution is not wanted here", is_transient=False)
        if self._has_input(key.pass_index, key.segment, peer):
            return Refusal("here already", is_transient=False, is_held=True)
        root = self.roots.of(key.pass_index, peer)
        slot = self.inbox.slots[peer]
        return Destination(slot, *place, self.propose.lowrank_r, root, self.shape.num_segments)

    def on_segment(self, event: SegmentReceived) -> list[SegmentOrder] | Contradiction:
        """A segment of this attempt was stored. Late and double ones change nothing. It may contradict what its sender,
        or an owner, said before, or show that a result did (X10)."""
        peer, key, sha256 = event.peer, event.key, event.sha256
        if not isinstance(self.destination(peer, key), Destination):
            return []
        if key.pass_index and (found := self._bind(event)) is not None:
            return found
        self.num_moved += 1
        self.signs.add(peer)
        if key.kind == KIND_RESULT:
            return self._on_result(key.pass_index, key.segment, sha256)
        self._counts.input_came(key.pass_index, peer)
        if key.pass_index == 0:
            self.inbox.keep(peer, key.phase, key.segment, sha256)
        else:
            self.late_inputs.setdefault((key.pass_index, key.segment), {})[peer] = sha256
        return self._reduce_if_ready(key.pass_index, key.segment)

    def _bind(self, event: SegmentReceived) -> Contradiction | None:
        """It must name the payload that is known; of the first pass that was asked before it was taken."""
        key = event.key
        if key.kind == KIND_RESULT:
            return self.roots.bind_summands(key.pass_index, event.peer, event.root)
        return self.roots.bind(key.pass_index, event.peer, event.root)

    def _on_result(self, pass_index: int, segment: int, sha256: Digest) -> list[SegmentOrder]:
        if (pass_index, segment) not in self.results:
            self._counts.result_came(pass_index, self.owners[segment])
        self.results[pass_index, segment] = sha256
        if not self.is_contributor or pass_index != self.pass_index or not self._counts.is_complete(pass_index):
            return []
        if pass_index + 1 == self.shape.num_passes:
            return []
        self.pass_index += 1
        p = self.propose
        return [OrderPass(p.round, p.attempt, self.pass_index, p.lowrank_r)]

    def on_reduced(self, event: Reduced) -> list[SegmentOrder]:
        """Our result segment is encoded: it is a result for us as well, and goes to every other member that does not
        make it itself."""
        self.num_moved += 1
        key = self.key(KIND_RESULT, event.pass_index, event.segment)
        commands: list[SegmentOrder] = []
        for peer in () if self.shape.is_gathered else self.members:
            if peer != self.me:
                commands += self._send(peer, key, event.sha256)
        commands += self._on_result(event.pass_index, event.segment, event.sha256)
        if self.shape.is_gathered and event.pass_index + 1 < self.shape.num_passes:
            commands += self._reduce_if_ready(event.pass_index + 1, event.segment)
        return commands

    def on_prepared(self, event: PassPrepared) -> list[SegmentOrder] | Contradiction:
        """Our payload of the next pass is there, or all results were found to decode. It may be the last summand that
        was not known, and show that a result named others (X10)."""
        self.num_moved += 1
        if event.pass_index == self.shape.num_passes:
            self.is_checked = True
            return []
        if (found := self._offer(event.pass_index, event.segment_hashes)) is not None:
            return found
        return [*self._send_contribution(event.pass_index), *self._reduce_ready(event.pass_index)]

    def on_sent(self, peer: PeerId, key: SegmentKey) -> None:
        if self.transfers.deliver(peer, key):
            self.signs.add(peer)
            if peer in self.by_peer:
                self.num_moved += 1

    def on_failed(self, peer: PeerId, key: SegmentKey, retry_at: Monotonic) -> None:
        self.transfers.fail(peer, key, retry_at)

    def retry(self, now: Monotonic) -> list[SegmentOrder]:
        """Transfers whose pause is over."""
        return [self._sending(*what) for what in self.transfers.due(now)]

    def next_retry(self) -> Monotonic | None:
        return self.transfers.next_retry()

    @property
    def result_hashes(self) -> tuple[Digest, ...] | None:
        """All results in (pass, segment) order, None while one is missing."""
        if self._result_hashes is None and len(self.results) == self.shape.num_passes * self.shape.num_segments:
            self._result_hashes = tuple(sha256 for _, sha256 in sorted(self.results.items()))
        return self._result_hashes

    def has_all_inputs(self) -> bool:
        """Whether every segment that we own has been reduced or could be, in the current pass."""
        return self._counts.is_ordered(self.pass_index)

    def owed_by(self) -> frozenset[PeerId]:
        """Who has not given us an input of a segment that we own; if nobody, the owners of results that we lack."""
        inputs = {peer for peer in self.group if self._lacks_input(peer)}
        return frozenset((inputs or self._counts.lacking()) - {self.me})

    def withheld_by(self) -> frozenset[PeerId]:
        """Whose share of the first pass a segment of ours lacks: it waits for nobody else's."""
        if not self.owned or self.pass_index > 0:
            return frozenset()
        return frozenset(peer for peer in self.group if peer != self.me and self._lacks_input(peer))

    @property
    def is_held_by_few(self) -> bool:
        """Whether most of those with whom we have to do are done: they brought us all that they can, and have all that
        we bring them. Where we ourselves are slow, that is not so: we bring all others their parts at the same time."""
        busy = (self.owed_by() | self.transfers.owners_waiting()).intersection(self.by_peer)
        return 0 < 2 * len(busy) <= self._num_partners

    def _lacks_input(self, peer: PeerId) -> bool:
        if peer == self.me:
            return bool(self.owned) and self.pass_index not in self.outbox
        return self._counts.lacks_input(self.pass_index, peer)

    @property
    def owned_segments(self) -> tuple[OwnedSegment, ...]:
        """What we reduced, to be settled once the entry is committed."""
        return tuple(OwnedSegment(p, s, shares) for (p, s), shares in sorted(self.ordered.items()))
