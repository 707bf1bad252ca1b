"""Decides which source gives which chunk of a snapshot: each its window, its speed, its failures. Pure, no clock.

Every source takes the next chunk that is missing as soon as its window has room, so a fast source gives more. At the
end, when nothing is left to begin, a source that is idle asks once more for a chunk that another is late with, so that
the slowest does not decide when the download ends. A source that gives a wrong chunk is dropped at once and named;
one that fails several times in a row is not asked any more. Source: protocol/09-catching-up.md.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery.interface.limits import RecoveryLimits

SPEED_MEMORY = 0.5
"""Weight of the newest chunk in a source's measured time for one."""


@dataclass(slots=True)
class Source:
    """What is known of one source in this download."""

    peer: PeerId
    window: int
    asked: dict[int, Monotonic] = field(default_factory=dict)
    """Chunk -> when it was asked for."""
    failures: int = 0
    last_failure: str = ""
    is_dropped: bool = False
    chunk_s: float | None = None
    """Measured time for one chunk."""
    num_given: int = 0

    @property
    def is_free(self) -> bool:
        return not self.is_dropped and len(self.asked) < self.window


class ChunkPool:
    """Chunks 0 to n - 1 of `sizes` bytes, from `peers`. `present`: those that are there already."""

    def __init__(
        self, sizes: Sequence[int], peers: Sequence[PeerId], limits: RecoveryLimits, present: Iterable[int] = ()
    ) -> None:
        self._sizes = sizes
        self._limits = limits
        there = frozenset(present)
        missing = [number for number in range(len(sizes)) if number not in there]
        # Small ones last, or who begins a whole chunk when others end decides alone when the download does.
        self._todo = deque(sorted(missing, key=lambda number: -sizes[number]))
        self.left = set(self._todo)
        self.sources = {peer: Source(peer, limits.window) for peer in peers[: limits.sources_max]}
        self._askers: dict[int, list[PeerId]] = {}
        self._since: dict[int, Monotonic] = {}
        """When a chunk on its way was asked for last."""

    @property
    def is_complete(self) -> bool:
        return not self.left

    @property
    def is_hopeless(self) -> bool:
        """Chunks are missing, and there is nobody to ask."""
        return bool(self.left) and all(source.is_dropped for source in self.sources.values())

    @property
    def problem(self) -> str:
        """Why it is hopeless."""
        reasons = "; ".join(f"{source.peer}: {source.last_failure}" for source in self.sources.values())
        return f"{len(self.left)} of {len(self._sizes)} chunks missing: {reasons or 'no sources'}"

    def ask(self, now: Monotonic) -> list[tuple[PeerId, int]]:
        """Whom to ask for which chunk now."""
        asked = []
        free = [source for source in self.sources.values() if source.is_free]
        while free:
            for source in list(free):
                number = self._next(source, now) if source.is_free else None
                if number is None:
                    free.remove(source)
                    continue
                source.asked[number] = self._since[number] = now
                self._askers.setdefault(number, []).append(source.peer)
                asked.append((source.peer, number))
        return asked

    def _next(self, source: Source, now: Monotonic) -> int | None:
        if self._todo:
            return self._todo.popleft()
        late = [(self._since[n], n) for n in self._askers if self._is_late_at(source, n, now)]
        return min(late)[1] if late else None

    def _is_late_at(self, source: Source, number: int, now: Monotonic) -> bool:
        at = self._late_at(source, number)
        return at is not None and now >= at

    def _late_at(self, source: Source, number: int) -> Monotonic | None:
        """When this idle source would ask once more for a chunk that others were asked for."""
        if source.peer in self._askers[number]:
            return None
        known = source.chunk_s
        late_s = self._limits.late_first_s if known is None else self._limits.late_factor * known
        return Monotonic(self._since[number] + late_s)

    def next_deadline(self) -> Monotonic | None:
        """When an idle source takes over a late chunk, unless something comes before."""
        if self._todo:
            return None
        idle = [source for source in self.sources.values() if source.is_free]
        found = [at for s in idle for number in self._askers if (at := self._late_at(s, number)) is not None]
        return min(found, default=None)

    def patience_s(self, number: int) -> float:
        """How long a question about this chunk may take."""
        return self._limits.patience_s(self._sizes[number])

    def came(self, peer: PeerId, number: int, now: Monotonic) -> tuple[PeerId, ...]:
        """A right chunk is on disk. Returns the others that were asked for it: cancel that."""
        source = self.sources[peer]
        took = max(0.0, now - source.asked.get(number, now))
        known = source.chunk_s
        source.chunk_s = took if known is None else SPEED_MEMORY * took + (1 - SPEED_MEMORY) * known
        source.failures, source.window = 0, self._limits.window
        source.num_given += 1
        others = tuple(other for other in self._askers.pop(number, []) if other != peer)
        for asked in (peer, *others):
            self.sources[asked].asked.pop(number, None)
        self._since.pop(number, None)
        self.left.discard(number)
        return others

    def drop(self, peer: PeerId, number: int, reason: str) -> None:
        """Its chunk was wrong: others take over that one, and all else that it was asked for."""
        for asked in dict.fromkeys((number, *self.sources[peer].asked)):
            self.failed(peer, asked, reason, is_final=True)

    def failed(self, peer: PeerId, number: int, reason: str, *, is_final: bool) -> None:
        """It did not come; whoever is free next takes it over."""
        source = self.sources[peer]
        source.last_failure = reason
        source.failures += 1
        source.window = 1
        source.is_dropped = source.is_dropped or is_final or source.failures >= self._limits.failures_max
        source.asked.pop(number, None)
        askers = self._askers.get(number, [])
        if peer in askers:
            askers.remove(peer)
        if not askers and number in self._askers:
            del self._askers[number], self._since[number]
            if number in self.left:
                self._todo.appendleft(number)
