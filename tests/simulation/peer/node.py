"""A simulated peer: the real round and membership machines, and a driver that carries out their commands.

Obeys the order rules of machines/round/inputs.py; can crash between any two commands or in a write to its disk, lose
its disk, find it full, be paused. Its clock has its own zero and its own speed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, Monotonic, PeerId, PhaseId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass, OrderReduce, SendSegment
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits
from dilocoxd.machines.membership.machine import UNREACHABLE_LIVE_S
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.finality import Place
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.wire.entry import entry_hash
from tests.simulation.peer.disk import GENESIS, RUN_ID, Crashed, Disk, Payload, Stored, hashes
from tests.simulation.peer.presence import HEARTBEAT_S, Joining, Presence, spoiled
from tests.simulation.peer.signing import UNIX_MS, keys_of
from tests.simulation.peer.worker import Worker
from tests.simulation.rules.watch import OPEN, Watch

if TYPE_CHECKING:
    from tests.simulation.peer.recovering import Recovery
    from tests.simulation.schedules.byzantine import Mischief
    from tests.simulation.swarm import Swarm

CLOCK_GRAIN_S = 1e-6
"""Timers never fire early, whatever is lost in converting clocks."""
ADOPT_AGAIN_S = 3.0
DEADLINE_MAX_S = 60.0
"""R-e: whoever waits looks again within this time."""


class Node:
    """One peer. `epoch` counts process lives: what was scheduled in an earlier life never runs."""

    def __init__(self, swarm: Swarm, name: str, phase_s: float, *, is_training: bool = True) -> None:
        self.swarm = swarm
        self.world = swarm.world
        self.name = PeerId(name)
        self.phase_s = phase_s
        self.is_training = is_training
        self.sums = swarm.make_sums()
        self.disk: Disk = swarm.make_disk(name)
        self.is_founder = not swarm.nodes
        """The others had an address of somebody to ask when they came."""
        self.clock_zero = 0.0
        self.clock_rate = 1.0
        self.epoch = 0
        self.is_up = False
        self.is_paused = False
        self.paused_at = self.went_on_at = float("-inf")
        self.has_left = False
        self.mischief: Mischief | None = None
        self.is_lost = False
        """Its disk is lost; this identity never comes back."""
        self.crash_after: int | None = None
        """Commands until the armed crash."""
        self.crash_in_append = ""
        """Where in its next write to the log the process dies (disk.CRASHES)."""
        self.backlog: list[Callable[[], None]] = []
        self.is_reading = False
        """It has just been woken: what came meanwhile is read before a deadline is told (daemon/round/inbox.py)."""
        self.saw_sound = True
        """It trained on the state before the one that was spoiled, in this life."""
        self.machine: RoundMachine
        self.checked: ChainView | None = None
        """What was compared with the chains of all others last."""
        self.told: Place | None = None
        """Where its operator told it to be last (R28), whatever became of that."""
        self.kept_from: dict[PeerId, r.FinalKept] = {}
        """Better branches that it did not take."""

    # --- life

    def start(self) -> None:
        if self.is_up or self.is_lost:
            return
        self.epoch += 1
        self.is_up = True
        self.is_paused = False
        self.has_left = False
        self.backlog = []
        choice = self.disk.open()
        self.disk.incarnation += 1
        self.swarm.ledger.left.pop(self.name, None)
        if choice is not None:
            self.swarm.ledger.chose(self.name, choice)
        self.swarm.ledger.opened(self.name, [stored.signed.entry for stored in self.disk.log])
        self.worker, self.cancelled_below = Worker(self, self.disk.promise_payload), (-1, -1)
        self.offered: PhaseId | None = None
        self.wake_at = float("inf")
        self.is_recovering = False
        self.recovery: Recovery | None = None
        self.site = Ourselves(self.name, RUN_ID, GENESIS, keys_of(self.name, self.unix_ms))
        chain, kept = self.disk.chain(self.sums), self.disk.kept()
        self.machine = RoundMachine(self.site, self.sums.shape, self.swarm.limits, chain, kept)
        self.watch = Watch(self, self.swarm.votes_said, self.swarm.accepts_said)
        self.presence = Presence(self)
        self.world.log(f"{self.name} starts at height {self.machine.chain.height}")
        self.feed(e.Started(self.disk.taken_back))
        self.joining = Joining(self)
        self.later(0.0, self.presence.tick)
        self.later(0.1, self._begin)
        self.later(0.2, self._adopt)

    def clock(self) -> Monotonic:
        """Time as this peer reads it."""
        return Monotonic(self.clock_zero + self.clock_rate * self.world.now)

    def unix_ms(self) -> int:
        """What this peer's clock says of the date."""
        return UNIX_MS + round(1000 * self.world.now)

    def crash(self, *, wipes_disk: bool = False) -> None:
        if not self.is_up:
            return
        self.world.log(f"{self.name} crashes{' and loses its disk' if wipes_disk else ''}")
        self.is_up = False
        self.swarm.ledger.crashed.add(self.name)
        self.swarm.note_taken_along()
        self.swarm.connections_end(self)
        self.epoch += 1
        self.crash_after = None
        self.crash_in_append = ""
        if self.offered is not None:
            self.swarm.ledger.lost(self.name, self.offered)
        if wipes_disk:
            self.swarm.ledger.wiped(self.name)
            self.swarm.ledger.forgot(self.name)

    def adopt(self, source: Node) -> None:
        """The operator wants it to be where `source` is. A word that is on disk, and said again until it is so."""
        self.told = self.disk.adopted = (len(source.disk.log), head_of(source.disk.log))
        self._adopt()

    def _adopt(self) -> None:
        place = self.disk.adopted
        if place is None or any(h == place for h in _places(self.disk.log)):
            return
        if not self.is_recovering:
            live = [peer for peer in self.presence.live() if peer != self.name]
            self.feed(e.BranchAdopted(tuple(live)))
        self.later(ADOPT_AGAIN_S, self._adopt)

    def pause(self) -> None:
        if self.is_up:
            self.world.log(f"{self.name} is paused")
            self.is_paused = True
            self.paused_at = self.world.now

    def resume(self) -> None:
        if self.is_up and self.is_paused:
            self.world.log(f"{self.name} goes on")
            self.is_paused = False
            self.went_on_at = self.world.now
            backlog, self.backlog = self.backlog, []
            self.is_reading = True
            self.watch.woke(self.clock_rate * (self.world.now - self.paused_at))
            for action in backlog:
                action()
            self.is_reading = False

    def stands_still(self) -> bool:
        """Paused, or for so short a time not any more that nobody need have heard of it."""
        return self.is_up and (self.is_paused or self.world.now - self.went_on_at < HEARTBEAT_S)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run in this life; while paused, keep for later."""
        self.world.after(seconds, self.guarded(action))

    def guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        return functools.partial(self._run, self.epoch, action)

    def _run(self, epoch: int, action: Callable[[], None]) -> None:
        if not self.is_up or self.epoch != epoch:
            return
        if self.is_paused:
            self.backlog.append(functools.partial(self._run, epoch, action))
            return
        action()

    def is_idle(self) -> bool:
        """Between two rounds, with nothing of ours on its way."""
        return self.machine.state == "gathering" and self.offered is None and not self.is_recovering

    def is_at_rest(self) -> bool:
        """Its log holds what it stands on: no entry is being written or applied, no branch of its own lies aside."""
        return head_of(self.disk.log) == self.machine.chain.head

    # --- the driver

    def feed(self, event: e.Event) -> None:
        if not self.is_up:
            return
        if self.world.keeps_transcript:
            self.world.log(f"{self.name} {event}")  # first: the event that breaks a rule is in the transcript
        now = self.clock()
        self.watch.before(event, now)
        commands = self.machine.handle(event, now=now)
        self.watch.after(event, commands)
        if self.swarm.listener is not None:
            self.swarm.listener.fed(self, event, commands)
        epoch = self.epoch
        try:
            for command in commands:
                if self.world.keeps_transcript:
                    self.world.log(f"{self.name}   -> {command}")
                self._count_down()
                self.watch.carried_out(command)
                self._execute(command)
        except Crashed:
            self.crash()
        except StoreError as error:
            self.feed(e.StoreFailed(str(error)))
        if self.epoch != epoch:
            return
        deadline = self.machine.next_deadline()
        self._check(deadline, now)
        self._arm(deadline)

    def _check(self, deadline: Monotonic | None, now: Monotonic) -> None:
        """After every event: R-a, R-e and the machine's own invariants."""
        self.machine.check()
        chain = self.machine.chain
        if chain is not self.checked:  # a view never changes
            self.checked = chain
            self.swarm.ledger.at_head(self.name, chain.head, chain.state_digest)
        if self.machine.state in OPEN:
            assert deadline is not None and deadline - now <= DEADLINE_MAX_S, "R-e: no deadline"

    def _count_down(self) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                raise Crashed

    def _arm(self, deadline: Monotonic | None) -> None:
        if deadline is None:
            return
        at = (deadline - self.clock_zero) / self.clock_rate + CLOCK_GRAIN_S
        if at < self.wake_at or self.wake_at <= self.world.now:
            self.wake_at = at
            self.later(max(0.0, at - self.world.now), lambda: self._on_wake(at))

    def _on_wake(self, at: float) -> None:
        if self.is_reading:
            self.later(0.0, lambda: self._on_wake(at))
        elif at == self.wake_at:
            self.wake_at = float("inf")
            self.feed(e.DeadlineReached())

    def _execute(self, command: c.Command) -> None:  # one line per command
        match command:
            case c.Send():
                self.swarm.post(self.name, command.peer, command.message)
            case c.Broadcast():
                for peer in self.presence.live():
                    self.swarm.post(self.name, peer, command.message)
            case c.PersistPromise():
                self._persist_promise(command)
            case c.PersistReverts():
                self.disk.taken_back = command.taken_back
            case SendSegment():
                self.swarm.transfer(self, command)
            case CancelTransfers():
                self.cancelled_below = (command.round, command.attempt)
            case OrderReduce():
                self.worker.work(0.02, lambda: self.worker.reduce(command))
            case OrderPass():
                self.worker.work(0.02, lambda: self.worker.prepare(command))
            case c.OrderAudit():
                self.worker.work(0.05, lambda: self.worker.audit(command))
            case c.PersistEntry():
                self._persist_entry(command)
            case c.AbandonContribution(phase, is_voted):
                self._settle(phase, is_included=False, is_voted=is_voted)
            case c.ApplyEntry():
                if command.settle is not None:
                    self.worker.check_owned(command.round, command.settle)
                    self._settle(command.settle.phase, is_included=True)
                    self._count_down()  # it may die between the two
                self.worker.work(0.05, lambda: self.worker.apply(command))
            case c.StartRecovery():
                self.swarm.recover(self, command)
            case c.ExtendRecovery() if self.recovery is not None:
                self.recovery.machine.extend(command.peers)
            case c.ReportPeer():
                self.swarm.reported(self.name, command)
            case c.DoubleVoteFound():
                self.swarm.convicted(self.name, command.evidence.peer)
            case c.RoundFinished():
                self.swarm.rounds_finished += self.mischief is None
                self.presence.say()
            case c.AttemptFailed():
                self.swarm.attempts_failed += 1
            case c.LeaveFinished():
                self._leave()

    def _leave(self) -> None:
        self.presence.say("left")
        self.has_left = True
        self.is_up = False
        # It may take along what it decided, or may have decided: R17's time-out, or a disk that failed, as in a crash.
        # And whom it was handed over to may die before anybody else has it; so may those who finish what it had begun.
        self.swarm.ledger.left[self.name] = len(self.disk.log) + 1
        self.swarm.note_taken_along()
        self.swarm.connections_end(self)
        self.epoch += 1
        if self.offered is not None:
            self.swarm.ledger.lost(self.name, self.offered)

    # --- disk

    def _persist_promise(self, command: c.PersistPromise) -> None:
        entry = command.promise.entry
        is_held = entry is not None and hashes(self.worker.result) == entry.result_hashes
        self.disk.save_promise(command.promise, dict(self.worker.result) if is_held else {})

    def _persist_entry(self, command: c.PersistEntry) -> None:
        payload: Payload = dict(self.worker.result)
        assert hashes(payload) == command.signed.entry.result_hashes, f"{self.name}: RESULT is not what was voted for"
        still = [n for n in self.swarm.nodes.values() if n.stands_still() or n.name in self.swarm.refused]
        if missed := {node.name for node in still if node is not self and not self._waits_for(node)}:
            self.swarm.ledger.decided_without(missed, command.signed.entry.round)
            self.swarm.note_taken_along(missed)
        self.later(self.world.rng.uniform(0.005, 0.1), lambda: self._persisted(command, payload))

    def _waits_for(self, still: Node) -> bool:
        """Not if we take it for dead, nor if we never heard of it, and it stands still for so long that we would."""
        view = self.machine.height.book.view(still.name)
        if view is None:
            return self.world.now - still.paused_at < UNREACHABLE_LIVE_S
        return view.is_live

    def _persisted(self, command: c.PersistEntry, payload: Payload) -> None:
        entry = command.signed.entry
        assert len(self.disk.log) == entry.round, "log is not contiguous"
        try:
            self.disk.append(Stored(command.signed, payload), self.crash_in_append)
        except Crashed:
            self.crash()
            return
        except StoreError as error:
            self.feed(e.StoreFailed(str(error)))
            return
        self.swarm.ledger.committed(self.name, entry)
        self.swarm.ledger.taken(self.name, entry)
        if self.mischief is None:
            self.swarm.moved_at = self.world.now
        if self.sums.is_exact:
            results = [data for _, data in sorted(payload.items())]
            self.swarm.ledger.check_sums(self.name, entry, results, self.swarm.liars())
        self.feed(e.EntryPersisted(entry.round))

    def _settle(self, phase: PhaseId, *, is_included: bool, is_voted: bool = False) -> None:
        self.swarm.ledger.settled(self.name, phase, is_included=is_included, is_voted=is_voted)
        if self.offered == phase:
            self.offered = None

    # --- training

    @property
    def trains(self) -> bool:
        return self.is_training and self.joining.is_over

    def _begin(self) -> None:
        if not self.joining.look():
            self.later(0.5, self._begin)
        elif self.is_training:
            self.later(self.phase_s * self.world.rng.uniform(0.5, 1.5), self._boundary)

    def _boundary(self) -> None:
        is_busy = self.offered is not None or self.is_recovering or not self.swarm.is_training
        if not is_busy and spoiled(self) is None:
            self.worker.form()
        if self.is_up:
            seconds = self.phase_s * (0.2 if is_busy else self.world.rng.uniform(0.8, 1.2))
            self.later(seconds, self._boundary)


def _places(log: list[Stored]) -> list[Place]:
    """Where a log has been."""
    return [(index + 1, entry_hash(stored.signed.entry)) for index, stored in enumerate(log)]


def head_of(log: list[Stored]) -> Digest:
    """Chain head after this log."""
    return entry_hash(log[-1].signed.entry) if log else GENESIS


__all__ = ["Node", "PayloadShape", "RoundLimits"]
