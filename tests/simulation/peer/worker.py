"""The simulated outer worker: one queue of orders over OUTBOX, INBOX and RESULT, and the site's own phases.

Checks on the way what the real one relies on: at Settle, what we reduced can still be computed from INBOX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dilocoxd.ids import Digest, PhaseId, RoundIndex
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced, ReduceFailed
from dilocoxd.machines.exchange.orders import OrderPass, OrderReduce
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.wire.entry import RAMP_WHOLE, Contribution, payload_root
from dilocoxd.wire.local.outer_worker import Share
from tests.simulation.ledger import Broken
from tests.simulation.peer.arithmetic import weighted_mean
from tests.simulation.peer.disk import PARTICIPATION_ROUNDS, Payload, sha
from tests.simulation.peer.signing import offer_of

if TYPE_CHECKING:
    from tests.simulation.peer.node import Node


class Worker:
    """Buffers and queue of one process life."""

    def __init__(self, node: Node, result: Payload) -> None:
        self.node = node
        self.sums = node.sums
        self.shape = node.sums.shape
        self.outbox: Payload = {}
        self.inbox: dict[tuple[int, int, int], bytes] = {}
        self.result: Payload = dict(result)
        self.free_at = node.world.now

    def work(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it when everything before it is done."""
        world = self.node.world
        self.free_at = max(self.free_at, world.now) + seconds * world.rng.uniform(0.3, 3.0)
        world.at(self.free_at, self.node.guarded(action))

    def reduce(self, order: OrderReduce) -> None:
        place = (order.pass_index, order.segment)
        self._check_missing(order)
        self.result[place] = self.reduced(place, order.shares)
        self.node.feed(Reduced(order.round, order.attempt, *place, sha(self.result[place])))

    def _check_missing(self, order: OrderReduce) -> None:
        """X9: every owner scales by what the log says, however it came to stand where it stands."""
        log = self.node.disk.log[max(0, order.round - PARTICIPATION_ROUNDS) : order.round]
        fullest = max((len(stored.signed.entry.counted) for stored in log), default=0)
        expected = max(0, fullest - sum(share.ramp == RAMP_WHOLE for share in order.shares))
        if any(share.missing != expected for share in order.shares):
            raise Broken(f"X9: {self.node.name} reduces round {order.round} as if other than {expected} were missing")

    def reduced(self, place: tuple[int, int], shares: tuple[Share, ...]) -> bytes:
        """The sum of these shares as OUTBOX and INBOX hold them."""
        payloads = [
            (self.outbox[place] if share.slot < 0 else self.inbox[(share.slot, *place)], share.tokens, share.ramp)
            for share in shares
        ]
        return self.sums.reduced(place, payloads, self.results_before(place))

    def results_before(self, place: tuple[int, int]) -> list[bytes]:
        return [self.result[index, place[1]] for index in range(place[0])]

    def prepare(self, order: OrderPass) -> None:
        where, segments = (order.round, order.attempt, order.pass_index), range(self.shape.num_segments)
        if order.pass_index == self.shape.num_passes:  # the check before the vote
            bad, made = self.sums.bad_segment(self.result), ()
        else:
            bad, made = self._prepare_next(order.pass_index, segments)
        sound = PassPrepared(*where, made)
        self.node.feed(sound if bad is None else ReduceFailed(*where, None, None, "does not decode", bad))

    def _prepare_next(self, pass_index: int, segments: range) -> tuple[int | None, tuple[Digest, ...]]:
        """(the first segment whose results so far do not decode, hashes of what is offered if there is none)."""
        for segment in segments:
            place = (pass_index, segment)
            try:
                made = self.sums.next_payload(*place, self.results_before(place), self.outbox[0, segment])
            except ValueError:
                return segment, ()
            self.outbox[place] = made
        return None, tuple(sha(self.outbox[pass_index, segment]) for segment in segments)

    def audit(self, order: c.OrderAudit) -> None:
        """All segments of others, from the contributions as they were offered: X13 with a fraction of 1."""
        known, entry = self.node.swarm.ledger.payloads, order.entry
        culprits = set()
        for segment, owner in enumerate(order.owners):
            shares = [
                (known[named.peer, named.phase][segment], named.tokens, entry.ramp_of(place))
                for place, named in enumerate(entry.contributions)
            ]
            if owner != self.node.name and sha(weighted_mean(shares)) != entry.result_hashes[segment]:
                culprits.add(owner)
        self.node.feed(e.Audited(order.round, order.attempt, tuple(sorted(culprits)), "another sum"))

    def form(self) -> None:
        """A phase ends: offer its contribution."""
        node, rng = self.node, self.node.world.rng
        chain = node.machine.chain
        phase = PhaseId(max(node.disk.next_phase, chain.last_phases.get(node.name, -1) + 1))
        node.disk.next_phase = phase + 1
        payloads = [self.sums.first_payload(segment, rng) for segment in range(self.shape.num_segments)]
        for segment, payload in enumerate(payloads):
            self.outbox[0, segment] = payload
        made = tuple(sha(payload) for payload in payloads)
        contribution = Contribution(node.name, phase, chain.height, 10, rng.randint(1, 1000), payload_root(made))
        node.offered = phase
        node.swarm.ledger.payloads[node.name, phase] = payloads
        node.swarm.ledger.offered(node.name, phase)
        node.feed(e.PhaseOffered(contribution, made, offer_of(contribution)))

    def check_owned(self, round_index: RoundIndex, settle: c.Settlement) -> None:
        """The owner's residual is made at Settle from INBOX and RESULT: they must still be those of this round."""
        entry = self.node.disk.log[round_index].signed.entry
        for owned in settle.owned:
            place = (owned.pass_index, owned.segment)
            expected = entry.result_hashes[owned.pass_index * self.shape.num_segments + owned.segment]
            if sha(self.reduced(place, owned.shares)) != expected:
                raise Broken(f"R-b: {self.node.name} settles round {round_index} with other shares than it reduced")

    def apply(self, command: c.ApplyEntry) -> None:
        digest = self.sums.applied(self.node.machine.chain.state_digest, self.node.disk.log[command.round].payload)
        self.node.feed(e.EntryApplied(command.round, digest))
