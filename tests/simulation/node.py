"""A simulated peer: the real round machine, and a driver that carries out its commands on simulated parts.

Obeys the order rules of rounds/events.py; can crash between any two commands, lose its disk, or be paused.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

from dilocoxd.ids import Digest, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.rounds import commands as c, events as e
from dilocoxd.rounds.limits import PayloadShape, RoundLimits, Site, VoteKeys
from dilocoxd.rounds.round import RoundMachine
from dilocoxd.wire.entry import Contribution, SignedVote, payload_root
from tests.simulation.disk import GENESIS, RUN_ID, Disk, Payload, Stored, applied, encode, hashes, sha, weighted_mean

if TYPE_CHECKING:
    from tests.simulation.byzantine import Mischief
    from tests.simulation.swarm import Swarm

HEARTBEAT_S = 1.0
DEAD_AFTER_S = 5.0


class Crashed(Exception):
    """The process died between two commands."""


def keys_of(peer: str) -> VoteKeys:
    """Signatures that only their owner can make in the simulation."""

    def tag(name: str, text: bytes) -> bytes:
        return hmac.new(b"key of " + name.encode(), text, hashlib.sha256).digest()

    def sign(text: bytes) -> SignedVote:
        return SignedVote(PeerId(peer), peer.encode(), tag(peer, text))

    def verify(vote: SignedVote, text: bytes) -> bool:
        return vote.public_key == vote.peer.encode() and vote.signature == tag(vote.peer, text)

    return VoteKeys(sign, verify)


class Node:
    """One peer. `epoch` counts process lives: what was scheduled in an earlier life never runs."""

    def __init__(self, swarm: Swarm, name: str, phase_s: float, *, is_training: bool = True) -> None:
        self.swarm = swarm
        self.world = swarm.world
        self.name = PeerId(name)
        self.phase_s = phase_s
        self.is_training = is_training
        self.disk = Disk()
        self.epoch = 0
        self.is_up = False
        self.is_paused = False
        self.has_left = False
        self.mischief: Mischief | None = None
        self.is_gone = False
        """Its disk is lost; this identity never comes back."""
        self.crash_after: int | None = None
        """Commands until the armed crash."""
        self.backlog: list[Callable[[], None]] = []
        self.machine: RoundMachine

    # --- life

    def start(self) -> None:
        if self.is_up or self.is_gone:
            return
        self.epoch += 1
        self.is_up = True
        self.is_paused = False
        self.has_left = False
        self.backlog = []
        self.outbox: Payload = {}
        self.inbox: dict[tuple[int, int, int], bytes] = {}
        self.result: Payload = dict(self.disk.promise_payload)
        self.worker_free = self.world.now
        self.cancelled_below = (-1, -1)
        self.offered: PhaseId | None = None
        self.heard: dict[PeerId, tuple[float, RoundIndex, Digest, bool]] = {}
        self.beaten_at = self.world.now
        self.wake_at = float("inf")
        self.is_recovering = False
        self.site = Site(self.name, RUN_ID, GENESIS, keys_of(self.name))
        self.machine = RoundMachine(self.site, self.swarm.shape, self.swarm.limits, self.disk.chain(), self.disk.kept())
        self.world.log(f"{self.name} starts at height {self.machine.chain.height}")
        self.feed(e.Started())
        self.later(0.0, self._beat)
        if self.is_training:
            self.later(self.phase_s * self.world.rng.uniform(0.5, 1.5), self._boundary)

    def crash(self, *, wipes_disk: bool = False) -> None:
        if not self.is_up:
            return
        self.world.log(f"{self.name} crashes{' and loses its disk' if wipes_disk else ''}")
        self.is_up = False
        self.swarm.ledger.crashed.add(self.name)
        self.epoch += 1
        self.crash_after = None
        if self.offered is not None:
            self.swarm.ledger.lost(self.name, self.offered)
        if wipes_disk:
            self.disk = Disk(incarnation=self.disk.incarnation)
            self.swarm.ledger.wiped(self.name)

    def pause(self) -> None:
        if self.is_up:
            self.world.log(f"{self.name} is paused")
            self.is_paused = True

    def resume(self) -> None:
        if self.is_up and self.is_paused:
            self.world.log(f"{self.name} goes on")
            self.is_paused = False
            backlog, self.backlog = self.backlog, []
            for action in backlog:
                action()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run in this life; while paused, keep for later."""
        self.world.after(seconds, self.guarded(action))

    def guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        epoch = self.epoch

        def run() -> None:
            if not self.is_up or self.epoch != epoch:
                return
            if self.is_paused:
                self.backlog.append(run)
                return
            action()

        return run

    def is_idle(self) -> bool:
        """Between two rounds, with nothing of ours on its way."""
        return self.machine.status.state == "gathering" and self.offered is None and not self.is_recovering

    # --- the driver

    def feed(self, event: e.Event) -> None:
        if not self.is_up:
            return
        commands = self.machine.handle(event, now=Monotonic(self.world.now))
        if self.world.keeps_transcript:
            self.world.log(f"{self.name} {event}")
        epoch = self.epoch
        try:
            for command in commands:
                if self.world.keeps_transcript:
                    self.world.log(f"{self.name}   -> {command}")
                self._count_down()
                self._execute(command)
        except Crashed:
            self.crash()
        if self.epoch != epoch:
            return
        self.machine.check()
        chain = self.machine.chain
        self.swarm.ledger.at_head(self.name, chain.head, chain.state_digest)
        self._arm()

    def _count_down(self) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                raise Crashed

    def _arm(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and (deadline < self.wake_at or self.wake_at <= self.world.now):
            self.wake_at = float(deadline)
            self.later(max(0.0, deadline - self.world.now), lambda: self._on_wake(float(deadline)))

    def _on_wake(self, deadline: float) -> None:
        if deadline == self.wake_at:
            self.wake_at = float("inf")
            self.feed(e.DeadlineReached())

    def _execute(self, command: c.Command) -> None:  # one line per command
        match command:
            case c.Send():
                self.swarm.post(self.name, command.peer, command.message)
            case c.Broadcast():
                for peer in self.swarm.nodes:
                    if peer != self.name:
                        self.swarm.post(self.name, peer, command.message)
            case c.PersistPromise():
                self._persist_promise(command)
            case c.SendSegment():
                self.swarm.transfer(self, command)
            case c.CancelTransfers():
                self.cancelled_below = (command.round, command.attempt)
            case c.OrderReduce():
                self.work(0.02, lambda: self._reduce(command))
            case c.OrderPass():
                self.work(0.02, lambda: self._prepare(command))
            case c.PersistEntry():
                self._persist_entry(command)
            case c.SettleContribution():
                self._settle(command)
            case c.ApplyEntry():
                self.work(0.05, lambda: self._apply(command))
            case c.StartRecovery():
                self.swarm.recover(self, command)
            case c.ReportPeer():
                self.swarm.reported(self.name, command)
            case c.RoundFinished():
                self.swarm.rounds_finished += self.mischief is None
            case c.AttemptFailed():
                self.swarm.attempts_failed += 1
            case c.LeaveFinished():
                self._leave()

    def _leave(self) -> None:
        self.has_left = True
        self.is_up = False
        self.epoch += 1
        if self.offered is not None:
            self.swarm.ledger.lost(self.name, self.offered)

    # --- disk

    def _persist_promise(self, command: c.PersistPromise) -> None:
        self.disk.promise = command.promise
        self.disk.promise_payload = {}
        entry = command.promise.entry
        if entry is not None and hashes(self.result) == entry.result_hashes:
            self.disk.promise_payload = dict(self.result)

    def _persist_entry(self, command: c.PersistEntry) -> None:
        payload = dict(self.result)
        assert hashes(payload) == command.signed.entry.result_hashes, f"{self.name}: RESULT is not what was voted for"
        self.later(self.world.rng.uniform(0.005, 0.1), lambda: self._persisted(command, payload))

    def _persisted(self, command: c.PersistEntry, payload: Payload) -> None:
        entry = command.signed.entry
        assert len(self.disk.log) == entry.round, "log is not contiguous"
        self.disk.log.append(Stored(command.signed, payload))
        self.swarm.ledger.committed(self.name, entry)
        if self.swarm.shape.num_passes == 1:
            liars = {node.name for node in self.swarm.nodes.values() if node.mischief is not None}
            self.swarm.ledger.check_sums(self.name, entry, [data for _, data in sorted(payload.items())], liars)
        self.feed(e.EntryPersisted(entry.round))

    # --- worker

    def work(self, seconds: float, action: Callable[[], None]) -> None:
        seconds *= self.world.rng.uniform(0.3, 3.0)
        self.worker_free = max(self.worker_free, self.world.now) + seconds
        self.world.at(self.worker_free, self.guarded(action))

    def _reduce(self, order: c.OrderReduce) -> None:
        place = (order.pass_index, order.segment)
        payloads = []
        for share in order.shares:
            data = self.outbox[place] if share.slot < 0 else self.inbox[(share.slot, *place)]
            payloads.append((data, share.tokens))
        self.result[place] = weighted_mean(payloads)
        self.feed(e.Reduced(order.round, order.attempt, *place, sha(self.result[place])))

    def _prepare(self, order: c.OrderPass) -> None:
        for segment in range(self.swarm.shape.num_segments):
            seed = self.outbox[0, segment] + self.result[order.pass_index - 1, segment]
            self.outbox[order.pass_index, segment] = encode([b / 7 for b in hashlib.sha256(seed).digest()[:2]])
        made = tuple(sha(self.outbox[order.pass_index, s]) for s in range(self.swarm.shape.num_segments))
        self.feed(e.PassPrepared(order.round, order.attempt, order.pass_index, made))

    def _settle(self, command: c.SettleContribution) -> None:
        self.swarm.ledger.settled(self.name, command.phase, is_included=command.is_included)
        if self.offered == command.phase:
            self.offered = None

    def _apply(self, command: c.ApplyEntry) -> None:
        digest = applied(self.machine.chain.state_digest, self.disk.log[command.round].payload)
        self.feed(e.EntryApplied(command.round, digest))

    # --- training

    def _boundary(self) -> None:
        is_busy = self.offered is not None or self.is_recovering or not self.swarm.is_training
        if is_busy:
            self.later(self.phase_s * 0.2, self._boundary)
            return
        chain = self.machine.chain
        phase = PhaseId(max(self.disk.next_phase, chain.last_phases.get(self.name, -1) + 1))
        self.disk.next_phase = phase + 1
        rng = self.world.rng
        for segment in range(self.swarm.shape.num_segments):
            self.outbox[0, segment] = encode([rng.uniform(-1, 1), rng.uniform(-1, 1)])
        made = tuple(sha(self.outbox[0, s]) for s in range(self.swarm.shape.num_segments))
        contribution = Contribution(self.name, phase, chain.height, 10, rng.randint(1, 1000), payload_root(made))
        self.offered = phase
        segments = [self.outbox[0, s] for s in range(self.swarm.shape.num_segments)]
        self.swarm.ledger.payloads[self.name, phase] = segments
        self.swarm.ledger.offered(self.name, phase)
        self.feed(e.PhaseOffered(contribution, made))
        self.later(self.phase_s * rng.uniform(0.8, 1.2), self._boundary)

    # --- a stand-in for membership: direct heartbeats

    def _beat(self) -> None:
        lag = self.world.now - self.beaten_at - 1.1 * HEARTBEAT_S
        if lag > 1.0:
            self.heard = {peer: (at + lag, *rest) for peer, (at, *rest) in self.heard.items()}  # type: ignore[misc]
        self.beaten_at = self.world.now
        chain = self.machine.chain
        said = (chain.height, chain.head, self.is_training)
        for peer in self.swarm.nodes.values():
            if peer is not self:
                self.world.deliver(self.name, peer.name, functools.partial(peer.hear, self.name, said))
        views = tuple(
            e.PeerView(peer, at + DEAD_AFTER_S > self.world.now, training, height, head)
            for peer, (at, height, head, training) in sorted(self.heard.items())
        )
        self.feed(e.PeersChanged(views, is_training=self.is_training))
        self.later(HEARTBEAT_S * self.world.rng.uniform(0.9, 1.1), self._beat)

    def hear(self, peer: PeerId, said: tuple[RoundIndex, Digest, bool]) -> None:
        def note() -> None:
            self.heard[peer] = (self.world.now, *said)

        self.guarded(note)()


__all__ = ["Node", "PayloadShape", "RoundLimits"]
