"""Whether the newest shared state can be trained from: its very first inner steps tell who spoiled it.

Parameters that an entry, or a bit that rotted, has spoiled give no finite loss from the first inner step on. What a
learning rate breaks has finite steps before, and stays a matter of the trainers. Part of the phase machine
(docs/adr/0031).
"""

from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.wire.local.trainer import NOT_FINITE, StepDone

FIRST_STEPS: Final = 3
"""So many in a row that are not finite, from the first after the state was taken up, and it is spoiled; one may be an
overflow of its batch."""


@dataclass(frozen=True, slots=True)
class Spoiled:
    """The shared state `round` gives no finite loss."""

    round: RoundIndex
    since: RoundIndex | None
    """Newest state before it from which an inner step was finite here: the entries from there on are suspected. None:
    no step was since the daemon started, or this very state trained before."""

    @property
    def entries(self) -> str:
        """Those that may have spoiled it, for people."""
        if self.since is None:
            return f"entry {self.round - 1} or one before it"
        last = self.round - 1
        return f"entry {last}" if self.since == last else f"one of the entries {self.since} to {last}"


@dataclass(slots=True)
class Soundness:
    """Told what the trainers took up and how their steps went."""

    spoiled: Spoiled | None = None
    """Of the state that is there now."""
    was_spoiled: bool = False
    """A state was, and none has trained since."""
    sound: RoundIndex | None = None
    """Newest state from which an inner step was finite."""
    _taken: RoundIndex | None = None
    """Taken up, and no finite step yet."""
    _after: tuple[PhaseId, int] = (PhaseId(0), 0)
    """Phase and inner step at which it was: a step of before may be told later, by another rank."""
    _told: tuple[PhaseId, int] = (PhaseId(0), 0)
    """The newest step that was told."""
    _num_bad: int = 0
    _skipped: int = 0
    _is_bad: bool = False
    """The newest step from what is held now was not finite."""

    @property
    def spoiled_by(self) -> tuple[RoundIndex | None, RoundIndex] | None:
        """Rounds [first, end) of the entries that may have done it, first None if we do not know; None: it is sound."""
        return (self.spoiled.since, self.spoiled.round) if self.spoiled is not None else None

    @property
    def is_doubted(self) -> bool:
        """No step from this state was finite yet, and too few were made to say whose fault that is."""
        return self._taken is not None and self._num_bad > 0

    def awaits(self, phase: PhaseId, inner_step: int) -> bool:
        """Whether this step, which is done, still has to be told and may say something of this state."""
        return self._taken is not None and max(self._after, self._told) < (phase, inner_step)

    def begin(self) -> None:
        """A fresh generation of trainers counts from zero."""
        self._taken, self._num_bad, self._skipped, self._is_bad = None, 0, 0, False

    def took(self, round_index: RoundIndex, phase: PhaseId, inner_step: int, *, is_merged: bool = False) -> None:
        """After this step of this phase the trainers hold this state. State 0 is nobody's entry. `is_merged`: with what
        they trained themselves, which is no witness if it was not finite before; unless what they hold was doubted
        from the state before it on: then this state is one more suspect, and its steps are counted with those."""
        self._is_bad = is_merged and self._is_bad
        is_told_apart = bool(round_index) and (not self._is_bad or self.is_doubted)
        self._num_bad = self._num_bad if self._is_bad and is_told_apart else 0
        self._taken = round_index if is_told_apart else None
        self._after = (phase, inner_step)

    def step(self, step: StepDone, inner_steps: int) -> bool:
        """An inner step of a phase of so many. Whether the state is now known to be spoiled, or to train after one
        was."""
        is_bad = step.loss >= NOT_FINITE or step.skipped_steps > self._skipped
        self._skipped, self._told = step.skipped_steps, max(self._told, (step.phase, step.inner_step))
        if (step.phase, step.inner_step) <= self._after:
            return False
        self._is_bad = is_bad
        if self._taken is None:
            return False
        if not is_bad:
            self.sound, self._taken = self._taken, None
            was_spoiled, self.was_spoiled = self.was_spoiled, False
            return was_spoiled
        self._num_bad += 1
        if self._num_bad < min(FIRST_STEPS, inner_steps):
            return False
        since = self.sound if self.sound is not None and self.sound < self._taken else None
        self.spoiled, self.was_spoiled, self._taken = Spoiled(self._taken, since), True, None
        return True

    def replaced(self) -> bool:
        """Another state is there. Whether the one before was spoiled: then the trainers must take this one at once."""
        was_spoiled, self.spoiled = self.spoiled is not None, None
        return was_spoiled
