"""Finds where a peer's chain parts from ours, by asking from further and further below our height. Pure.

Source: protocol/09-catching-up.md L2, L3.
"""

from collections.abc import Sequence
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.wire.entry import SignedEntry, entry_hash

FIRST_STEP_BACK: Final = 16
STEP_FACTOR: Final = 4


class BranchSearch:
    """One peer. `heads`: chain head at each height of ours, `heads[0]` = genesis."""

    def __init__(self, heads: Sequence[Digest], entries_max: int) -> None:
        self._heads = heads
        self._entries_max = entries_max
        self._first = len(heads) - 1
        self._step = FIRST_STEP_BACK
        self._found: list[SignedEntry] = []

    @property
    def next_from(self) -> int:
        """What to ask for: the peer's entries from here on."""
        return self._first + len(self._found)

    def take(self, entries: Sequence[SignedEntry]) -> Branch | None:
        """The answer to `next_from`: the whole branch, or None when there is more to ask. Raises WireError."""
        for place, signed in enumerate(entries, self.next_from):
            if signed.entry.round != place:
                raise WireError("malformed", f"entry {signed.entry.round} at place {place} of the answer")
        if self._found:
            if entries and len(self._found) < self._entries_max:
                self._found += entries
                return None
            return self._branch()
        if entries and entries[0].entry.parent == self._heads[self._first]:
            self._found += entries
            return None
        if self._first == 0:
            if not entries:
                return Branch(0, ())
            raise WireError("malformed", "its first entry does not start from the genesis of this run")
        self._first = max(0, self._first - self._step)
        self._step *= STEP_FACTOR
        return None

    def _branch(self) -> Branch:
        num_same = 0
        for height, signed in enumerate(self._found, self._first + 1):
            if height >= len(self._heads) or entry_hash(signed.entry) != self._heads[height]:
                break
            num_same += 1
        return Branch(self._first + num_same, tuple(self._found[num_same:]))
