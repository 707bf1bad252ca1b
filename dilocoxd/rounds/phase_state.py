"""State of the phase machine (rounds/phases.py) and the two things every part of it does: emit and persist."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.outer_queue import OuterQueue
from dilocoxd.rounds.site_steps import site_inner_steps
from dilocoxd.rounds.trainer_track import NEVER, TrainerState, TrainerTrack
from dilocoxd.wire.local import Settle, StateReady


@dataclass(slots=True)
class PhaseState:
    """Everything the machine knows."""

    settings: ev.PhaseSettings
    record: ev.SiteRecord
    next_phase: PhaseId
    inner_steps: int
    lowrank_r: int
    trainer: TrainerTrack = field(default_factory=TrainerTrack)
    queue: OuterQueue = field(default_factory=OuterQueue)
    flight: ev.Flight | None = None
    shared: StateReady | None = None
    """Newest shared state in the buffers; None before the first load."""
    expected: RoundIndex | None = None
    """Shared state after everything that is queued; None while a load is queued."""
    num_contributors: int = 0
    """Of the newest entry that is queued or applied; 0 before the first."""
    pause_reason: str = ""
    has_outer: bool = False
    is_begun: bool = False
    """The site has caught up once, and its error feedback is in place."""
    is_leaving: bool = False
    has_saved: bool = False
    held: frozenset[PhaseId] = frozenset()
    """Phases that FEEDBACK has although their contributions were in a chain once (phase_returned.py) ..."""
    saved_held: frozenset[PhaseId] = frozenset()
    """... and those that the error feedback on disk has."""
    has_left: bool = False
    has_failed: bool = False
    evaluation_due: bool = False
    included_round: RoundIndex | None = None
    """Of the entry with our contribution, until the trainers have been told to take what came of it."""
    others_due_at: Monotonic | None = None
    others_pace: tuple[float, ...] = ()
    now: Monotonic = NEVER
    out: list[ev.PhaseCommand] = field(default_factory=list)

    def emit(self, command: ev.PhaseCommand) -> None:
        """Append a command."""
        self.out.append(command)

    def tell(self, message: ev.TrainerCommand) -> None:
        """Append a message to the trainers; their silence counts from now if they owed nothing before."""
        if not self.trainer.owes:
            self.trainer.last_sign = self.now
        self.out.append(ev.TellTrainer(message))

    def persist(self, **changes: Any) -> None:
        """Change the record and make it durable before whatever is emitted next."""
        self.record = dataclasses.replace(self.record, **changes)
        self.out.append(ev.PersistRecord(self.record))

    def fail(self, reason: str) -> None:
        """Stop deciding: a restart of the daemon rebuilds what is lost."""
        self.has_failed = True
        self.out.append(ev.FailSite(reason))

    def take_phase_number(self) -> PhaseId:
        """A number that was never used, durable before it is."""
        number = self.next_phase
        if number >= self.record.phases_reserved:
            self.persist(phases_reserved=number + 1)
        self.next_phase = PhaseId(number + 1)
        return number

    def settle(self, phase: PhaseId | None, round_index: RoundIndex, *, owned: tuple[Any, ...] | None) -> None:
        """Queue the settlement of an offered contribution; anything else is stale. `owned` None: not included."""
        flight = self.flight
        if flight is None or flight.phase != phase or flight.stage != "offered":
            return
        flight.stage = "settling"
        self.included_round = round_index if owned is not None else None
        if owned is not None and self.record.carried_by != flight.phase:
            self.persist(carried_by=flight.phase, carried=self.record.formed_with)
        self.queue.add(Settle(0, flight.phase, round_index, owned is not None, owned or ()))

    def drop_flight(self, reason: str, *, is_poisoned: bool) -> None:
        """The contribution comes to nothing; poisoned: the trainers' own parameters are not sound either."""
        assert self.flight is not None
        self.emit(ev.DropContribution(self.flight.phase, reason))
        self.flight = None
        if is_poisoned and self.trainer.needs_merge:
            self.trainer.needs_merge, self.trainer.must_replace = False, True

    @property
    def planned_steps(self) -> int:
        """Inner steps of a phase that begins now."""
        at_least = self.settings.site_steps_min
        return site_inner_steps(self.inner_steps, self.trainer.step_seconds, self.others_pace, at_least)

    @property
    def is_trainer_active(self) -> bool:
        """A generation has been ordered to train."""
        return self.trainer.state not in (TrainerState.ABSENT, TrainerState.IDLE)
