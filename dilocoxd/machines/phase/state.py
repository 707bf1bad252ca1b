"""State of the phase machine (machines/phase/machine.py) and the two things every part of it does: emit and persist."""

import dataclasses
import enum
import random
from pathlib import PurePath
from typing import Any, Final

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.flight import Flight, without
from dilocoxd.machines.phase.inner_steps import site_inner_steps
from dilocoxd.machines.phase.outer_queue import OuterQueue
from dilocoxd.machines.phase.owed_work import OwedWork
from dilocoxd.machines.phase.settings import PhaseSettings, SiteRecord
from dilocoxd.machines.phase.soundness import Soundness
from dilocoxd.machines.phase.trainer_state import NEVER, Generation, TrainerState
from dilocoxd.machines.phase.vocabulary import TrainerCommand
from dilocoxd.wire.local.outer_worker import OwnedSegment, Settle, StateReady


class Departure(enum.Enum):
    """How far a site has come that is to leave."""

    NONE = "none"
    ASKED = "asked"
    """The trainers stop, what is queued ends."""
    SAVING = "saving"
    """What only this site has is being saved, or could not be."""
    LEFT = "left"


class PhaseState:
    """What the machine knows as long as it lives. What ends sooner is an object of its own, dropped when it ends: the
    trainers' generation and its phase, the contribution in flight."""

    def __init__(self, settings: PhaseSettings, record: SiteRecord, lot: random.Random) -> None:
        self.settings: Final = settings
        self.lot: Final = lot
        self.queue: Final = OuterQueue()
        self.owed: Final = OwedWork()
        self.record = record
        self.next_phase = settings.volumes.first_phase(record.phases_reserved)
        self.trainer = Generation()
        self.soundness: Final = Soundness()
        self.flight: Flight | None = None
        self.shared: StateReady | None = None
        """Newest shared state in the buffers; None before the first load."""
        self.num_contributors = 0
        """Of the newest entry that is queued or applied; 0 before the first."""
        self.included_round: RoundIndex | None = None
        """Of the entry with our contribution, until the trainers have been told to take what came of it."""
        self.pause_reason = ""
        self.is_begun = False
        """The site has caught up once, and its error feedback is in place."""
        self.departure = Departure.NONE
        self.has_failed = False
        self.evaluation_due = False
        self.others = ev.OthersDue(None)
        """The newest word about the other sites."""
        self.now = NEVER
        self.out: list[cmd.PhaseCommand] = []

    def emit(self, command: cmd.PhaseCommand) -> None:
        """Append a command."""
        self.out.append(command)

    def tell(self, message: TrainerCommand) -> None:
        """Append a message to the trainers; their silence counts from now if they owed nothing before."""
        if not self.trainer.owes:
            self.trainer.last_sign = self.now
        self.out.append(cmd.TellTrainer(message))

    def persist(self, *, is_derived: bool = False, **changes: Any) -> None:
        """Change the record and make it durable before whatever is emitted next, unless the chain says it too."""
        self.record = dataclasses.replace(self.record, **changes)
        self.out.append(cmd.PersistRecord(self.record, is_derived))

    def fail(self, reason: str) -> None:
        """Stop deciding: a restart of the daemon rebuilds what is lost."""
        self.has_failed = True
        self.out.append(cmd.FailSite(reason))

    def take_phase_number(self) -> PhaseId:
        """A number that was never used, durable before it is."""
        number = self.next_phase
        if number >= self.record.phases_reserved:
            self.persist(phases_reserved=number + 1)
        self.next_phase = self.settings.volumes.first_phase(number + 1)
        return number

    def settle(
        self,
        phase: PhaseId | None,
        round_index: RoundIndex,
        *,
        owned: tuple[OwnedSegment, ...] | None,
        entry: ev.CommittedEntry | None = None,
    ) -> None:
        """Queue the settlement of an offered contribution; anything else is stale. `owned` None: not included. `entry`:
        the one that counted it, None if its results are not at hand."""
        flight = self.flight
        if flight is None or flight.phase != phase or flight.stage != "offered":
            return
        flight.stage = "settling"
        self.included_round = round_index if owned is not None else None
        flight.is_included = owned is not None
        if owned is not None:
            self.owed.deliver(flight.phase, flight.content)
        settle = Settle(0, flight.phase, round_index, owned is not None, owned or (), forgets=flight.forgets)
        if entry is not None:
            settle = dataclasses.replace(
                settle,
                place=entry.place,
                path=entry.path,
                offset=entry.offset,
                lowrank_r=entry.lowrank_r,
                without=without(self.settings, self.lot, round_index, owned or ()),
            )
        elif owned is not None:
            kept = PurePath(self.settings.own_work_directory) / f"{flight.phase}.work"
            settle = dataclasses.replace(settle, kept_path=str(kept))
        self.queue.add(settle)

    def drop_flight(self, reason: str, *, is_poisoned: bool) -> None:
        """The contribution comes to nothing; poisoned: the trainers' own parameters are not sound either."""
        assert self.flight is not None
        self.emit(cmd.DropContribution(self.flight.phase, reason))
        self.flight = None
        if is_poisoned and self.trainer.needs_merge:
            self.trainer.needs_merge, self.trainer.must_replace = False, True

    def connect_trainers(self, generation: int) -> None:
        """A fresh generation is there; only the speed of steps is remembered."""
        self.soundness.begin()
        self.trainer = Generation(generation, self.trainer.step_times, self.trainer.pauses, TrainerState.IDLE, self.now)

    def lose_trainers(self) -> None:
        """The generation has ended: its phase is abandoned."""
        self.trainer = Generation(self.trainer.number, self.trainer.step_times, self.trainer.pauses)

    @property
    def inner_steps(self) -> int:
        """H of the newest shared state."""
        return (self.shared.inner_steps if self.shared is not None else 0) or self.settings.inner_steps

    @property
    def lowrank_r(self) -> int:
        """Low rank of what is formed on the newest shared state."""
        return self.settings.lowrank_r if self.shared is None else self.shared.lowrank_r

    @property
    def expected(self) -> RoundIndex | None:
        """Shared state after everything that is queued; None while a load is queued, and before the first."""
        return self.queue.state_after(self.shared.round if self.shared is not None else None)

    @property
    def is_leaving(self) -> bool:
        return self.departure is not Departure.NONE

    @property
    def planned_steps(self) -> int:
        """Inner steps of a phase that begins now."""
        at_least = self.settings.site_steps_min
        return site_inner_steps(self.inner_steps, self.trainer.step_seconds, self.others.step_seconds, at_least)

    @property
    def is_halted(self) -> bool:
        """The trainers are to stand still: somebody pauses them, or nothing can be trained from the shared state."""
        return bool(self.pause_reason) or self.soundness.spoiled is not None

    @property
    def is_trainer_active(self) -> bool:
        """A generation has been ordered to train."""
        return self.trainer.state not in (TrainerState.ABSENT, TrainerState.IDLE)
