"""A chain of which only the contributors matter, for tests of who may vote and who is a member."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dilocoxd.ids import Digest, PeerId


@dataclass
class Chain:
    """Contributors of each entry; `branch` tells chains of the same contributors apart."""

    groups: list[str]
    branch: str = ""

    @property
    def height(self) -> int:
        return len(self.groups)

    def hash_at(self, height: int) -> Digest | None:
        if not 0 <= height <= self.height:
            return None
        return Digest(hashlib.sha256("|".join([self.branch, *self.groups[:height]]).encode()).digest())

    def of_entry(self, index: int) -> tuple[PeerId, ...]:
        return tuple(map(PeerId, self.groups[index]))

    def last_entry(self, peer: PeerId) -> int | None:
        return max((index for index, group in enumerate(self.groups) if peer in group), default=None)
