"""The end of LEFT_OUT: which contribution of which entry its values are of, as each outer part says of its segments.

No lock: who reads looks before and after. Source: docs/adr/0039-loss-without-one-site.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Final

LEFT_OUT_BYTES: Final = 64
"""Of what one part says. Those of all parts of the site follow the values, in their order."""
_LAYOUT: Final = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True)
class LeftOutOf:
    """State `round`, which is that after the entry, and the place of the contribution in it."""

    NOTHING: ClassVar[bytes] = bytes(LEFT_OUT_BYTES)
    """While values are written, and where none are: no state that an entry makes has the number 0."""

    round: int
    place: int
    is_counted: bool = True
    """Anything of it was counted here."""

    def encode(self) -> bytes:
        """LEFT_OUT_BYTES bytes."""
        return _LAYOUT.pack(self.round, self.place, self.is_counted).ljust(LEFT_OUT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> LeftOutOf | None:
        """Of what all parts say. None: the values mean nothing, because one has not written its own, or because
        nothing was counted anywhere."""
        said = [_LAYOUT.unpack_from(data, start) for start in range(0, len(data), LEFT_OUT_BYTES)]
        if len({each[:2] for each in said}) != 1 or not any(is_counted for _, _, is_counted in said):
            return None
        round_index, place, _ = said[0]
        return cls(round_index, place) if round_index else None
