"""Trainer and outer worker as the phase machine sees them, with the buffers they share, to prove orders of operations.

Parameters are modelled as (anchor they count from, units of progress since): u of a phase is the units, a merge keeps
the units since the last closed boundary. What the real buffers would silently get wrong is an AssertionError here.
"""

import hashlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.phases import PhaseMachine
from dilocoxd.wire import local


def digest(index: int) -> bytes:
    return hashlib.sha256(str(index).encode()).digest()


def state_ready(request: int, index: int, *, is_loaded: bool = True) -> local.StateReady:
    return local.StateReady(request, is_loaded, RoundIndex(index), digest(index), digest(-index - 1), 0.0)


@dataclass
class Buffers:
    """What survives workers: ANCHOR and PHASE."""

    anchor: int | None = None
    phase: tuple[Any, ...] = ("free",)


@dataclass
class TrainerModel:
    """One generation of the trainers. `inbox` holds commands not read yet."""

    buffers: Buffers
    generation: int
    inbox: deque[ev.TrainerCommand] = field(default_factory=deque)
    outbox: deque[ev.TrainerMessage] = field(default_factory=deque)
    phase: int = -1
    step: int = 0
    steps: int = 0
    base: int = -1
    units: list[tuple[int, int]] = field(default_factory=list)
    kept: int = 0
    """Number of leading units that the last closed boundary has offered."""
    mode: str = "idle"
    is_paused: bool = False
    closing: local.CloseBoundary | None = None
    work: int = 0

    def _replace(self) -> None:
        assert self.buffers.anchor is not None
        self.base, self.units, self.kept = self.buffers.anchor, [], 0

    def _take(self, how: str) -> None:
        assert self.buffers.anchor is not None
        if how in ("merge", "mix"):
            self.base, self.units, self.kept = self.buffers.anchor, self.units[self.kept :], 0
        else:
            self._replace()

    def _close(self, message: local.CloseBoundary) -> None:
        assert self.buffers.phase == ("base", self.base), (self.buffers.phase, self.base)
        self.buffers.phase = ("u", self.phase, tuple(self.units), self.base)
        self.kept = len(self.units)
        if message.then == "replace":
            self._replace()
        self.outbox.append(
            local.BoundaryClosed(
                PhaseId(self.phase), self.step, 10 * self.step, 1.0, message.then == "replace", message.round
            )
        )
        self.phase, self.step, self.steps = message.next_phase, 0, message.inner_steps
        self.mode = "waiting" if message.then == "wait" else "training"

    def can_step(self) -> bool:
        """Something to do: a command to read, or an inner step."""
        return bool(self.inbox) or (self.mode == "training" and not self.is_paused)

    def run_once(self) -> None:
        """Read one command if there is one, else train one inner step."""
        if self.inbox:
            self._read(self.inbox.popleft())
            return
        self.step += 1
        self.units.append((self.phase, self.step))
        self.outbox.append(local.StepDone(PhaseId(self.phase), self.step, 0, 1.0, 10, 0.1, 0.0))
        if self.step >= self.steps:
            self.mode = "due"
            self.outbox.append(local.BoundaryDue(PhaseId(self.phase), self.step))

    def _read(self, message: ev.TrainerCommand) -> None:
        match message:
            case local.StartTraining():
                assert self.mode == "idle"
                self._replace()
                self.phase, self.steps, self.mode = message.phase, message.inner_steps, "training"
                self.outbox.append(local.AnchorTaken(message.round, "start", message.phase, 0))
            case local.Extend(steps):
                assert self.mode == "due"
                self.steps, self.mode = self.steps + steps, "training"
            case local.CloseBoundary():
                assert self.mode == "due"
                self._close(message)
            case local.TakeAnchor(round_index, how):
                assert self.mode in ("training", "due", "waiting")
                assert self.buffers.anchor == round_index, "told to take an anchor that is not there"
                self._take(how)
                self.mode = "training" if self.mode == "waiting" else self.mode
                self.outbox.append(local.AnchorTaken(round_index, how, PhaseId(self.phase), self.step))
            case local.Evaluate(round_index):
                assert self.buffers.anchor == round_index
                self.outbox.append(local.Evaluated(round_index, 1.0, 0.1))
            case local.Pause():
                self.is_paused = True
            case local.Resume():
                self.is_paused = False
            case local.StopTraining():
                self.outbox.append(local.TrainerStopped(PhaseId(max(0, self.phase)), self.step))
                self.mode = "stopped"


@dataclass
class SiteModel:
    """The machine with its surroundings. Every command is carried out in order; every event is followed by check()."""

    settings: ev.PhaseSettings
    record: ev.SiteRecord = field(default_factory=ev.SiteRecord)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.machine = PhaseMachine(self.settings, self.record)
        self.buffers = Buffers()
        self.trainer: TrainerModel | None = None
        self.generation = 0
        self.outer_task: ev.RunOuter | None = None
        self.outer_is_up = False
        self.outer_in_place: int | None = None
        self.durable = self.record
        self.formed: dict[int, tuple[Any, ...]] = {}
        self.offered: int | None = None
        self.offers: list[ev.OfferContribution] = []
        self.dropped: list[ev.DropContribution] = []
        self.settled: list[tuple[int, bool]] = []
        self.books: set[int] = set()
        """Phases that FEEDBACK has again after a fork, or after a vote in vain."""
        self.voted_in_vain: set[int] = set()
        self.file: tuple[int, ...] | None = None
        """Those that the saved feedback has."""
        self.returned_number = 0
        self.dropped_by_fork: set[int] = set()
        """What `books` must come to, with what was voted for in vain."""
        self.orders: dict[int, ev.FinishOrder | ev.RefuseOrder | None] = {}
        self.started: list[int] = []
        self.included_round: int | None = None
        """Newest entry that took what was offered, until its anchor is mixed."""
        self.failure = ""
        self.has_left = False
        self.said: list[ev.TrainerCommand] = []
        self.outer_done: list[ev.OuterRequest] = []

    # --- events in, commands out ---

    def send(self, event: ev.PhaseEvent) -> None:
        for command in self.machine.handle(event, now=Monotonic(self.now)):
            self._execute(command)
        self.machine.check()
        assert isinstance(self.machine.waiting_for, str)

    def _execute(self, command: ev.PhaseCommand) -> None:
        match command:
            case ev.RunOuter():
                assert self.outer_is_up and (self.outer_task is None or self.outer_task == command)
                self.outer_task = command
            case ev.TellTrainer(message):
                self._tell(message)
            case ev.PersistRecord(record):
                self.durable = record
            case ev.OfferContribution():
                assert self.offered is None and self.durable.formed_phase == command.phase
                self.offered = command.phase
                self.offers.append(command)
            case ev.DropContribution():
                self.dropped.append(command)
            case ev.FinishOrder(order) | ev.RefuseOrder(order):
                assert self.orders[order] is None
                self.orders[order] = command
            case ev.RestartTrainer():
                self.trainer = None
            case ev.FailSite(reason):
                self.failure = reason
            case ev.FinishLeaving():
                self.has_left = True

    def _tell(self, message: ev.TrainerCommand) -> None:
        self.said.append(message)
        if isinstance(message, local.TakeAnchor) and message.mixed_round is not None:
            assert message.how == "mix" and self.settled[-1][1], "nothing of ours came in"
            assert message.mixed_round == self.included_round, "not the entry that took it, or mixed twice"
            self.included_round = None
        if isinstance(message, local.StartTraining):
            self._use_number(message.phase)
        if isinstance(message, local.CloseBoundary):
            self._use_number(message.next_phase)
        if self.trainer is not None:
            self.trainer.inbox.append(message)

    def _use_number(self, phase: int) -> None:
        assert phase < self.durable.phases_reserved, "used before it was durable"
        assert phase not in self.started, "a phase number was used twice"
        self.started.append(phase)

    def order(self) -> int:
        number = len(self.orders)
        self.orders[number] = None
        return number

    # --- what can happen ---

    def start_outer(self) -> None:
        self.outer_is_up = True
        loaded = self.buffers.anchor is not None
        self.send(ev.OuterStarted(state_ready(0, self.buffers.anchor or 0, is_loaded=loaded)))

    def lose_outer(self, *, after_effect: bool) -> None:
        """It dies; the operation that ran took effect or not."""
        if after_effect and self.outer_task is not None:
            self._effect(self.outer_task)
        self.outer_is_up, self.outer_task = False, None
        self.send(ev.OuterLost())

    def run_outer(self) -> None:
        task = self.outer_task
        assert task is not None
        answer = self._effect(task)
        self.outer_task = None
        self.send(ev.OperationDone(task.number, answer))

    def _effect(self, task: ev.RunOuter) -> ev.OuterAnswer:
        request, number, buffers = task.request, task.number, self.buffers
        self.outer_done.append(request)
        match request:
            case local.LoadState(_, directory):
                buffers.anchor = int(directory or 0)
                return state_ready(number, buffers.anchor)
            case local.ApplyEntry():
                assert buffers.anchor == request.round, "applied to the wrong state, or twice"
                buffers.anchor = request.round + 1
                return state_ready(number, buffers.anchor)
            case local.CopyBase():
                buffers.phase = ("base", buffers.anchor)
                return local.BaseCopied(number, RoundIndex(buffers.anchor or 0))
            case local.FormContribution():
                return self._form(number, request)
            case local.Settle():
                if (request.phase, request.is_included) not in self.settled:
                    assert all(phase < request.phase for phase, _ in self.settled), "settled twice or out of order"
                    self.settled.append((request.phase, request.is_included))
                    self.books |= self.voted_in_vain & {request.phase}
                self.offered = None
                return local.Settled(number, request.phase)
            case local.ReturnWork(_, phase, _, is_withdrawn):
                if number != self.returned_number:
                    assert (phase in self.books) == is_withdrawn, "the feedback gets or loses it twice"
                    self.books ^= {phase}
                    self.returned_number = number
                return local.WorkReturned(number, phase)
            case local.SaveSite():
                assert set(request.returned) == self.books, "the file does not say what it has"
                self.file = request.returned
                return local.SiteDone(number, False, "")
            case local.RestoreSite(_, _, phase):
                if self.file is None:
                    self.books = set(self.durable.carried)
                    return local.SiteDone(number, False, "no file")
                flying = self.record.saved_in_flight
                in_vain = {flying} if flying is not None and flying != phase else set()
                self.books = set(self.file) | in_vain
                return local.SiteDone(number, True, "", tuple(PhaseId(item) for item in self.file))

    def _form(self, number: int, request: local.FormContribution) -> local.ContributionFormed:
        if request.phase not in self.formed:
            assert self.buffers.phase[:2] == ("u", request.phase), self.buffers.phase
            assert not self.formed or max(self.formed) < request.phase
            self.formed[request.phase] = self.buffers.phase
            self.buffers.phase = ("free",)
        return local.ContributionFormed(number, request.phase, True, "", (digest(request.phase),), 1.0, 0.1, 0.0)

    def start_trainer(self) -> None:
        self.generation += 1
        self.trainer = TrainerModel(self.buffers, self.generation)
        self.send(ev.TrainerConnected(self.generation))

    def lose_trainer(self) -> None:
        assert self.trainer is not None
        if self.trainer.inbox and isinstance(self.trainer.inbox[0], local.CloseBoundary):
            self.buffers.phase = ("torn",)
        self.trainer = None
        self.send(ev.TrainerLost(self.generation))

    def hear_trainer(self) -> None:
        assert self.trainer is not None
        message, generation = self.trainer.outbox.popleft(), self.generation
        if isinstance(message, local.TrainerStopped):
            self.trainer = None
        self.send(ev.TrainerSaid(generation, message))

    def commit(self, *, is_included: bool) -> int:
        """The next entry commits; it decides the fate of what is offered."""
        expected = self.machine.state.expected
        assert expected is not None
        order = self.order()
        settles = self.offered
        if settles is not None:
            self.offered = None
            self.included_round = expected if is_included else None
        self.send(
            ev.EntryCommitted(
                order, expected, 0, self.settings.inner_steps, 0,
                settles=PhaseId(settles) if settles is not None else None,
                is_included=is_included and settles is not None,
            )
        )  # fmt: skip
        return order

    def abandon(self, *, is_voted: bool) -> int:
        """The round machine gives up what is offered."""
        order, phase = self.order(), self.offered
        assert phase is not None
        self.offered = None
        if is_voted and self.settings.delay != "streaming":
            self.voted_in_vain.add(phase)
            self.dropped_by_fork.add(phase)
        self.send(ev.ContributionAbandoned(order, PhaseId(phase), is_voted))
        return order

    def load(self, index: int) -> int:
        order, settles = self.order(), self.offered
        self.offered = None
        self.send(ev.LoadOrdered(order, str(index), PhaseId(settles) if settles is not None else None))
        return order

    def move(self, phase: int, *, is_withdrawn: bool) -> None:
        """A fork drops the entry with this phase, or brings it back."""
        self.send(ev.WorkMoved(self.order(), PhaseId(phase), is_withdrawn))

    def begin(
        self,
        height: int = 0,
        newest_own_phase: int | None = None,
        own_phases: tuple[int, ...] = (),
        kept_phases: tuple[int, ...] = (),
    ) -> None:
        newest = PhaseId(newest_own_phase) if newest_own_phase is not None else None
        own, kept = (frozenset(PhaseId(phase) for phase in phases) for phases in (own_phases, kept_phases))
        self.send(ev.TrainingBegun(self.order(), RoundIndex(height), newest, own, kept))
        if self.outer_task is None or not isinstance(self.outer_task.request, local.RestoreSite):
            self.books = set(self.durable.carried)

    def settle_down(self, *, until_due: bool = False, steps_max: int = 2000) -> None:
        """Let everything that can happen by itself happen, in a fixed order."""
        for _ in range(steps_max):
            trainer = self.trainer
            if self.outer_task is not None and self.outer_is_up:
                self.run_outer()
            elif trainer is not None and trainer.outbox:
                self.hear_trainer()
            elif trainer is not None and (trainer.inbox or (trainer.can_step() and until_due)):
                trainer.run_once()
            else:
                return
        raise AssertionError("it never comes to rest")
