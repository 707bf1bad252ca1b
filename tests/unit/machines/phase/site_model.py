"""Trainer and outer worker as the phase machine sees them, with the buffers they share, to prove orders of operations.

Parameters are modelled as (anchor they count from, units of progress since): u of a phase is the units, a merge keeps
the units since the last closed boundary. What the real buffers would silently get wrong is an AssertionError here.
"""

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.machine import PhaseMachine
from dilocoxd.machines.phase.settings import CountedIn, PhaseSettings, SavedFeedback, SiteRecord, StartingPoint
from dilocoxd.machines.phase.vocabulary import OuterAnswer, OuterRequest, TrainerCommand
from dilocoxd.wire.local import outer_worker as local, trainer as local_trainer
from tests.unit.machines.trainer_model import Buffers, TrainerModel


def digest(index: int) -> bytes:
    return hashlib.sha256(str(index).encode()).digest()


def state_ready(request: int, index: int, *, is_loaded: bool = True) -> local.StateReady:
    return local.StateReady(request, is_loaded, RoundIndex(index), digest(index), digest(-index - 1), 0.0)


@dataclass
class SiteModel:
    """The machine with its surroundings. Every command is carried out in order; every event is followed by check()."""

    settings: PhaseSettings
    record: SiteRecord = field(default_factory=SiteRecord)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.machine = PhaseMachine(self.settings, self.record, random.Random(0))
        self.buffers = Buffers()
        self.trainer: TrainerModel | None = None
        self.generation = 0
        self.outer_task: cmd.RunOuter | None = None
        self.outer_is_up = False
        self.outer_in_place: int | None = None
        self.durable = self.record
        self.formed: dict[int, tuple[Any, ...]] = {}
        self.offered: int | None = None
        self.offers: list[cmd.OfferContribution] = []
        self.dropped: list[cmd.DropContribution] = []
        self.settled: list[tuple[int, bool]] = []
        self.feedback: Counter[int] = Counter()
        """What FEEDBACK really contains, by phase."""
        self.contents: dict[int, Counter[int]] = {}
        """Phase -> what its contribution brings, by phase."""
        self.chain: set[int] = set()
        """Our phases in the chain."""
        self.flying: int | None = None
        """Formed and not settled."""
        self.derived = self.record.last_settled
        """Newest phase that was settled by an entry: the record may not say so."""
        self.saved: SavedFeedback | None = None
        """The feedback file."""
        self.returned_number = 0
        self.dropped_by_fork: set[int] = set()
        """What FEEDBACK must have besides, with what was voted for in vain."""
        self.forgotten: list[int] = []
        self.orders: dict[int, cmd.FinishOrder | cmd.RefuseOrder | None] = {}
        self.started: list[int] = []
        self.included_round: int | None = None
        """Newest entry that took what was offered, until its anchor is mixed."""
        self.failure = ""
        self.has_left = False
        self.said: list[TrainerCommand] = []
        self.told: list[cmd.TellSpoiled | cmd.TellTrains] = []
        self.outer_done: list[OuterRequest] = []

    # --- events in, commands out ---

    def send(self, event: ev.PhaseEvent) -> None:
        for command in self.machine.handle(event, now=Monotonic(self.now)):
            self._execute(command)
        self.machine.check()
        assert isinstance(self.machine.waiting_for, str)

    def _execute(self, command: cmd.PhaseCommand) -> None:
        match command:
            case cmd.RunOuter():
                assert self.outer_is_up and (self.outer_task is None or self.outer_task == command)
                self.outer_task = command
            case cmd.TellTrainer(message):
                self._tell(message)
            case cmd.PersistRecord(record, is_derived):
                if is_derived:
                    self.derived = record.last_settled
                if is_derived or record.last_settled == self.derived:  # it reaches the disk some time, or never
                    record = dataclasses.replace(record, last_settled=self.durable.last_settled)
                self.durable = record
            case cmd.OfferContribution():
                assert self.offered is None and command.phase < self.durable.phases_reserved
                self.offered = command.phase
                self.offers.append(command)
            case cmd.DropContribution():
                self.dropped.append(command)
            case cmd.TellSpoiled() | cmd.TellTrains():
                self.told.append(command)
            case cmd.ForgetWork(phase):
                self.forgotten.append(phase)
            case cmd.FinishOrder(order) | cmd.RefuseOrder(order):
                assert self.orders[order] is None
                self.orders[order] = command
            case cmd.RestartTrainer():
                self.trainer = None
            case cmd.FailSite(reason):
                self.failure = reason
            case cmd.FinishLeaving():
                self.has_left = True

    def _tell(self, message: TrainerCommand) -> None:
        self.said.append(message)
        if isinstance(message, local_trainer.TakeAnchor) and message.mixed_round is not None:
            assert message.how == "mix" and self.settled[-1][1], "nothing of ours came in"
            assert message.mixed_round == self.included_round, "not the entry that took it, or mixed twice"
            self.included_round = None
        if isinstance(message, local_trainer.StartTraining):
            self._use_number(message.phase)
        if isinstance(message, local_trainer.CloseBoundary):
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

    def _effect(self, task: cmd.RunOuter) -> OuterAnswer:
        request, number, buffers = task.request, task.number, self.buffers
        self.outer_done.append(request)
        self._count(task)
        match request:
            case local.LoadState(_, directory):
                buffers.anchor = int(directory or 0)
                return state_ready(number, buffers.anchor)
            case local.ApplyResult():
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
                self.offered = None
                return local.Settled(number, request.phase)
            case local.ReturnWork(_, phase):
                return local.WorkReturned(number, phase)
            case local.SaveSite():
                return local.SiteDone(number, False, "")
            case local.RestoreSite():
                return self._restore(number, request)

    def _count(self, task: cmd.RunOuter) -> None:
        """What an operation does to FEEDBACK; done again it does nothing."""
        match task.request:
            case local.FormContribution(_, phase) if phase not in self.contents:
                self.feedback[phase] += 1
                self.contents[phase], self.flying = Counter(self.feedback), phase
            case local.Settle() as settle if self.flying == settle.phase:
                if settle.is_included:
                    self.feedback.subtract(self.contents[settle.phase])
                    self.chain.add(settle.phase)
                elif settle.forgets or self.settings.delay == "streaming":
                    self.feedback.clear()
                self.flying = None
            case local.ReturnWork(_, phase, _, is_withdrawn) if task.number != self.returned_number:
                change = self.feedback.subtract if is_withdrawn else self.feedback.update
                change(self.contents[phase])
                self.returned_number = task.number
            case local.SaveSite(_, _, phase, content):
                told = {item.phase: item.times for item in content}
                assert told == self.held, "the file does not say what it has"
                flying = PhaseId(self.flying) if self.flying is not None else None
                self.saved = SavedFeedback(phase, flying, told)

    def _restore(self, number: int, request: local.RestoreSite) -> local.SiteDone:
        """As outerworker/feedback_file.py does it."""
        saved = self.saved
        self.feedback, self.flying = Counter(), None
        if saved is None or request.phase not in (saved.phase, saved.in_flight):
            return local.SiteDone(number, False, "no file")
        self.feedback = Counter(dict(saved.content))
        if request.phase == saved.in_flight:
            self.feedback.subtract(self.contents[saved.in_flight])
        return local.SiteDone(number, True, "")

    @property
    def held(self) -> dict[int, int]:
        """What FEEDBACK contains, without zeros."""
        return {phase: times for phase, times in self.feedback.items() if times}

    def counted(self) -> Counter[int]:
        """How often each phase is in FEEDBACK and chain."""
        total = Counter(self.feedback)
        for phase in self.chain:
            total.update(self.contents[phase])
        return total

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
        if self.trainer.inbox and isinstance(self.trainer.inbox[0], local_trainer.CloseBoundary):
            self.buffers.phase = ("torn",)
        self.trainer = None
        self.send(ev.TrainerLost(self.generation))

    def hear_trainer(self) -> None:
        assert self.trainer is not None
        message, generation = self.trainer.outbox.popleft(), self.generation
        if isinstance(message, local_trainer.TrainerStopped):
            self.trainer = None
        self.send(ev.TrainerSaid(generation, message))

    def commit(self, *, is_included: bool, owned: tuple[local.OwnedSegment, ...] = ()) -> int:
        """The next entry commits; it decides the fate of what is offered. `owned`: what was summed here."""
        expected = self.machine.state.expected
        assert expected is not None
        order = self.order()
        settles = self.offered
        if settles is not None:
            self.offered = None
            self.included_round = expected if is_included else None
        self.send(
            ev.EntryCommitted(
                order,
                ev.CommittedEntry(
                    expected, 0, self.settings.inner_steps, 0,
                    settles=PhaseId(settles) if settles is not None else None,
                    is_included=is_included and settles is not None, owned=owned,
                ),
            )
        )  # fmt: skip
        return order

    def abandon(self, *, is_voted: bool) -> int:
        """The round machine gives up what is offered."""
        order, phase = self.order(), self.offered
        assert phase is not None
        self.offered = None
        if is_voted and self.settings.delay != "streaming":
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
        (self.chain.add if is_withdrawn else self.chain.discard)(phase)
        self.send(ev.WorkMoved(self.order(), PhaseId(phase), is_withdrawn))

    def begin(
        self,
        own_phases: Iterable[int] = (),
        kept: Iterable[int] = (),
        newest: CountedIn | None = None,
        unreadable: Iterable[int] = (),
    ) -> None:
        """Caught up: these phases of ours are in the chain, the work of these is kept, or cannot be read any more."""
        own, self.feedback, self.flying = frozenset(map(PhaseId, own_phases)), Counter(), None
        self.chain = set(own)
        contents = {PhaseId(p): {PhaseId(q): n for q, n in self.contents[p].items() if n} for p in kept}
        start = StartingPoint(own, contents, newest, frozenset(map(PhaseId, unreadable)))
        self.send(ev.TrainingBegun(self.order(), start, self.saved))

    def train_from(self, state: int) -> None:
        """Outer worker and trainers are there, and train on the shared state of this number."""
        self.start_outer()
        self.load(state)
        self.settle_down()
        self.begin()
        self.start_trainer()
        self.settle_down()

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
