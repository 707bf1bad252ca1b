"""Counts what of an exchange is here, so that who owes what is known without looking at every segment.

Nothing is ever taken back: an exchange only gains inputs, orders and results.
"""

from collections import Counter
from collections.abc import Sequence

from dilocoxd.ids import PeerId


class SegmentCounts:
    """Of the segments of one exchange, pass by pass. Each fact is told once."""

    def __init__(self, me: PeerId, owners: Sequence[PeerId], num_passes: int) -> None:
        self._owned = Counter(owners)
        self._num_own = self._owned[me]
        self._num_segments = self._owned.total()
        self._num_passes = num_passes
        self._inputs: Counter[tuple[int, PeerId]] = Counter()
        """Of our own segments: how many have the input of this peer."""
        self._ordered: Counter[int] = Counter()
        self._results: Counter[tuple[int, PeerId]] = Counter()
        self._num_results: Counter[int] = Counter()

    def input_came(self, pass_index: int, peer: PeerId, count: int = 1) -> None:
        """Inputs of so many segments of ours."""
        self._inputs[pass_index, peer] += count

    def was_ordered(self, pass_index: int) -> None:
        """The reduction of one of our segments."""
        self._ordered[pass_index] += 1

    def result_came(self, pass_index: int, owner: PeerId) -> None:
        self._results[pass_index, owner] += 1
        self._num_results[pass_index] += 1

    def lacks_input(self, pass_index: int, peer: PeerId) -> bool:
        """Whether a segment of ours still waits for its share."""
        return self._inputs[pass_index, peer] < self._num_own

    def is_ordered(self, pass_index: int) -> bool:
        """Whether all our segments are."""
        return self._ordered[pass_index] == self._num_own

    def is_complete(self, pass_index: int) -> bool:
        """Whether all results of a pass are here."""
        return self._num_results[pass_index] == self._num_segments

    def lacking(self) -> set[PeerId]:
        """Owners of results that we lack in the first pass that is not complete; nobody if all are."""
        current = next((p for p in range(self._num_passes) if not self.is_complete(p)), None)
        if current is None:
            return set()
        return {owner for owner, count in self._owned.items() if self._results[current, owner] < count}
