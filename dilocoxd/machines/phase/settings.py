"""What a phase machine is built with, and what it begins to train with (machine.py; docs/internals.md section 2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dilocoxd.config.agreement import Delay
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.reading.volumes import ALL_VOLUMES, HeldVolumes


@dataclass(frozen=True, slots=True)
class PhaseSettings:
    """What the manifest and site.toml say. Steps are inner steps, times are seconds."""

    delay: Delay
    inner_steps: int
    extend_steps_max: int
    evaluate_every_rounds: int
    without_one_every: int = 0
    """Of the entries whose states are evaluated, one in so many is looked at without one contribution; 0: never."""
    lowrank_r: int = 0
    save_every_rounds: int = 1
    site_steps_min: int = 0
    """Fewest inner steps if this site is slower than the others; 0: it does as many as they."""
    checkpoint_directory: str = ""
    feedback_path: str = ""
    own_work_directory: str = ""
    start_timeout_s: float = 300.0
    silence_factor: float = 20.0
    silence_min_s: float = 60.0
    volumes: HeldVolumes = ALL_VOLUMES
    """Of the run's stores; numbers of phases that would read others are skipped."""

    def evaluates(self, state: RoundIndex) -> bool:
        """Whether trainers measure the validation loss of the shared state of this number."""
        return self.evaluate_every_rounds > 0 and state % self.evaluate_every_rounds == 0


@dataclass(frozen=True, slots=True)
class SiteRecord:
    """What must survive a crash of the daemon (site.json), or a phase number could be used twice. What is owed is
    derived at each start (owed_work.py)."""

    phases_reserved: int = 0
    """Numbers below this may have been used."""
    last_settled: PhaseId | None = None
    """Newest phase whose contribution has met its fate: what is formed from now on has a later one."""


@dataclass(frozen=True, slots=True)
class SavedFeedback:
    """What the feedback file says of itself."""

    phase: PhaseId
    """`last_settled` when it was written."""
    in_flight: PhaseId | None
    """The contribution in flight then; its payload is in the file too."""
    content: Mapping[PhaseId, int]


@dataclass(frozen=True, slots=True)
class CountedIn:
    """Where it stands how much an entry counted of our contribution of `phase`; nowhere: all of it was."""

    phase: PhaseId
    is_kept: bool = False
    """In our kept work of the phase."""
    results_path: str = ""
    """In the entry's results, at `offset` of this file."""
    offset: int = 0
    lowrank_r: int = 0
    place: int = 0
    """Of our contribution among those of the entry."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """What chain and disk say of our own work when training begins; decides whether saved error feedback is right."""

    own_phases: frozenset[PhaseId] = frozenset()
    """All phases of this peer that the chain names."""
    kept: Mapping[PhaseId, Mapping[PhaseId, int]] = field(default_factory=dict)
    """Contents of those whose work is kept: we voted for entries that name them, or meant to."""
    newest: CountedIn | None = None
    """Of our newest contribution in the chain; None if it has none."""
    unreadable: frozenset[PhaseId] = frozenset()
    """Those whose work is kept, but cannot be read: an entry that we voted for may still bring them into the chain."""
