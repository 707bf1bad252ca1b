"""Who contributed to which entry of our chain: what decides whose votes on an eviction count (protocol M7).

One tuple for each group of sites that ever worked together and one reference for each entry, so that the chain need
not be read again. Implements machines.admission.eviction.Contributors.
"""

from collections.abc import Callable, Iterable

from dilocoxd.ids import Digest, PeerId
from dilocoxd.store.log import EntryLog
from dilocoxd.wire.entry import Entry


class ContributorRoll:
    """Follows the applied chain; `log` holds at least its entries, but for the moment of a rollback."""

    def __init__(self, log: EntryLog) -> None:
        self._log = log
        self._groups: list[tuple[PeerId, ...]] = []
        self._known: dict[tuple[PeerId, ...], tuple[PeerId, ...]] = {}
        self._last: dict[PeerId, int] = {}
        self.on_change: Callable[[], None] = lambda: None

    @property
    def height(self) -> int:
        """Number of entries; while the log is rolled back, those that it still has."""
        return min(len(self._groups), self._log.height)

    def hash_at(self, height: int) -> Digest | None:
        """Chain head when it had `height` entries; None: it has fewer."""
        return self._log.hash_at(height) if 0 <= height <= self.height else None

    def of_entry(self, index: int) -> tuple[PeerId, ...]:
        """Contributors of entry `index`, sorted."""
        return self._groups[index]

    def last_entry(self, peer: PeerId) -> int | None:
        """Newest entry that names `peer`; None: none does."""
        return self._last.get(peer)

    def restart(self, entries: Iterable[Entry]) -> None:
        """The chain is this one now."""
        self._groups, self._known, self._last = [], {}, {}
        for entry in entries:
            self._add(entry)
        self.on_change()

    def extend(self, entry: Entry) -> None:
        """The next entry was applied."""
        self._add(entry)
        self.on_change()

    def _add(self, entry: Entry) -> None:
        group = tuple(contribution.peer for contribution in entry.contributions)
        self._last.update(dict.fromkeys(group, len(self._groups)))
        self._groups.append(self._known.setdefault(group, group))
