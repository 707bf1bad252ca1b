"""The end of LEFT_OUT: which contribution of which entry its values are of. No lock: who reads looks before and after.

Source: docs/adr/0039-loss-without-one-site.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Final

LEFT_OUT_BYTES: Final = 64
"""Behind the values."""
_LAYOUT: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class LeftOutOf:
    """State `round`, which is that after the entry, and the place of the contribution in it."""

    NOTHING: ClassVar[bytes] = bytes(LEFT_OUT_BYTES)
    """While values are written, and where none are: no state that an entry makes has the number 0."""

    round: int
    place: int

    def encode(self) -> bytes:
        """LEFT_OUT_BYTES bytes."""
        return _LAYOUT.pack(self.round, self.place).ljust(LEFT_OUT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeftOutOf | None:
        """None: the values mean nothing."""
        round_index, place = _LAYOUT.unpack_from(data)
        return cls(round_index, place) if round_index else None
