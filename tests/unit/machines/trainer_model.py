"""The trainers as the phase machine sees them, and the buffers that survive them."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase.vocabulary import TrainerCommand, TrainerMessage
from dilocoxd.wire.local import trainer as local_trainer


@dataclass
class Buffers:
    """What survives workers: ANCHOR and PHASE."""

    anchor: int | None = None
    phase: tuple[Any, ...] = ("free",)
    spoiled: set[int] = field(default_factory=set)
    """States from which no inner step is finite."""
    wasted: set[tuple[int, int]] = field(default_factory=set)
    """(phase, step) of the inner steps made from these."""
    is_step_told_late: bool = False
    """The rank that tells steps is another one than that which tells of the boundary, and slower."""


@dataclass
class TrainerModel:
    """One generation of the trainers. `inbox` holds commands not read yet."""

    buffers: Buffers
    generation: int
    inbox: deque[TrainerCommand] = field(default_factory=deque)
    outbox: deque[TrainerMessage] = field(default_factory=deque)
    phase: int = -1
    step: int = 0
    steps: int = 0
    base: int = -1
    units: list[tuple[int, int]] = field(default_factory=list)
    kept: int = 0
    """Number of leading units that the last closed boundary has offered."""
    mode: str = "idle"
    is_paused: bool = False
    closing: local_trainer.CloseBoundary | None = None
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

    def _close(self, message: local_trainer.CloseBoundary) -> None:
        assert self.buffers.phase == ("base", self.base), (self.buffers.phase, self.base)
        self.buffers.phase = ("u", self.phase, tuple(self.units), self.base)
        self.kept = len(self.units)
        if message.then == "replace":
            self._replace()
        self.outbox.append(
            local_trainer.BoundaryClosed(
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
        loss = local_trainer.NOT_FINITE if self.base in self.buffers.spoiled else 1.0
        if loss >= local_trainer.NOT_FINITE:
            self.buffers.wasted.add((self.phase, self.step))
        told: list[TrainerMessage] = [local_trainer.StepDone(PhaseId(self.phase), self.step, 0, loss, 10, 0.1, 0.0)]
        if self.step >= self.steps:
            self.mode = "due"
            told.append(local_trainer.BoundaryDue(PhaseId(self.phase), self.step))
        self.outbox.extend(reversed(told) if self.buffers.is_step_told_late else told)

    def _read(self, message: TrainerCommand) -> None:
        match message:
            case local_trainer.StartTraining():
                assert self.mode == "idle"
                self._replace()
                self.phase, self.steps, self.mode = message.phase, message.inner_steps, "training"
                self.outbox.append(local_trainer.AnchorTaken(message.round, "start", message.phase, 0))
            case local_trainer.Extend(steps):
                assert self.mode == "due"
                self.steps, self.mode = self.steps + steps, "training"
            case local_trainer.CloseBoundary():
                assert self.mode == "due"
                self._close(message)
            case local_trainer.TakeAnchor(round_index, how):
                assert self.mode in ("training", "due", "waiting")
                assert self.buffers.anchor == round_index, "told to take an anchor that is not there"
                self._take(how)
                self.mode = "training" if self.mode == "waiting" else self.mode
                self.outbox.append(local_trainer.AnchorTaken(round_index, how, PhaseId(self.phase), self.step))
            case local_trainer.Evaluate(round_index):
                assert self.buffers.anchor == round_index
                self.outbox.append(local_trainer.Evaluated(round_index, 1.0, 0.1))
            case local_trainer.Pause():
                self.is_paused = True
            case local_trainer.Resume():
                self.is_paused = False
            case local_trainer.StopTraining():
                self.outbox.append(local_trainer.TrainerStopped(PhaseId(max(0, self.phase)), self.step))
                self.mode = "stopped"
