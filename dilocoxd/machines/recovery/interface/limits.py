"""How patient a recovery is, and how much it asks for at a time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Patience and bounds of one recovery."""

    replay_max: int = 16
    """More missing entries than this are skipped by a snapshot, if somebody has one."""
    answer_timeout_s: float = 60.0
    """How long the answer to a question may take, besides the time for its bytes."""
    slowest_bytes_per_s: float = 32 * 1024
    """A source that is slower than this counts as failed."""
    entries_max: int = 1 << 20
    """Longest branch."""
    window: int = 2
    """Chunks asked of one source at a time; one after a failure."""
    failures_max: int = 3
    """Failures in a row after which a source gets no more questions about chunks."""
    sources_max: int = 16
    """Sources of chunks at a time: bounds memory."""
    late_factor: float = 1.5
    """A chunk that is on its way for this many times what an idle source needs for one is asked for once more."""
    late_first_s: float = 10.0
    """The same for an idle source that has given none yet."""

    def patience_s(self, num_bytes: int) -> float:
        """How long a question about this many bytes may take."""
        return self.answer_timeout_s + num_bytes / self.slowest_bytes_per_s
