"""Decides which segments each outer part of a site holds: consecutive stretches of about equal length.

Every process of a site computes the same from the segments alone (docs/adr/0030-outer-parts.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.wire.layout import Segment

PARTS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class OuterPart:
    """Number `index` of `num_parts`; written as `1/3`, and `1/3@1-3` where parts 1 and 2 alone are on one machine."""

    index: int = 0
    num_parts: int = 1
    before: int = 0
    """Parts on machines before this one (docs/adr/0035-a-site-on-several-machines.md)."""
    after: int = 0
    """Parts on machines behind it."""

    def __post_init__(self) -> None:
        if not 0 <= self.before <= self.index < self.num_parts - self.after <= self.num_parts <= PARTS_MAX:
            raise ValueError(f"there is no part {self.index} of {self.num_parts}")

    @property
    def is_whole(self) -> bool:
        """Nobody else holds anything."""
        return self.num_parts == 1

    @property
    def here(self) -> range:
        """Parts on this machine."""
        return range(self.before, self.num_parts - self.after)

    @property
    def has_all_here(self) -> bool:
        """There is one machine only."""
        return len(self.here) == self.num_parts

    def turn(self, numbers: range) -> range:
        """Of work that the parts of a machine share, what this one does."""
        return numbers[self.index - self.before :: len(self.here)]

    def __str__(self) -> str:
        where = "" if self.has_all_here else f"@{self.here.start}-{self.here.stop}"
        return f"{self.index}/{self.num_parts}{where}"

    @classmethod
    def parse(cls, text: str) -> OuterPart:
        """The inverse of `str`. Raises ValueError."""
        name, _, where = text.partition("@")
        index, _, num_parts = name.partition("/")
        first, _, stop = (where or f"0-{num_parts}").partition("-")
        return cls(int(index), int(num_parts), int(first), int(num_parts) - int(stop))


WHOLE: Final = OuterPart()


def place(segments: Sequence[Segment], num_parts: int) -> tuple[tuple[Segment, ...], ...]:
    """Segments of each part, in order; `segments` are all of a layout. A part may get none.

    A segment goes where its middle lies, so that no part is longer than its equal share and one largest segment.
    """
    total = segments[-1].stop if segments else 0
    dealt: list[list[Segment]] = [[] for _ in range(num_parts)]
    for segment in segments:
        dealt[(segment.start + segment.stop) * num_parts // (2 * total)].append(segment)
    return tuple(map(tuple, dealt))
