"""What a trainer rank on a node asks of the process that stands for its stage at the head (docs/adr/0035).

ANCHOR, PHASE and the saved moments are the head's; a rank on a node moves its own stretches of them when it reads or
writes them. The daemon never sees these messages. Every question has a number, and `Moved` answers it.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from dilocoxd.wire.codec import Length, Lines, Name, Uint

PLACES_MAX: Final = 1 << 17
TENSORS_MAX: Final = 1 << 17
Places = Annotated[tuple[Uint, ...], Length(0, 2 * PLACES_MAX)]
"""Bytes of a buffer: first, stop, first, stop, ..."""


@dataclass(frozen=True, slots=True)
class TakeBytes:
    """Let these bytes of the node's buffer be those of the head's."""

    number: Uint
    name: Name
    places: Places


@dataclass(frozen=True, slots=True)
class GiveBytes:
    """Let these bytes of the head's buffer be those of the node's."""

    number: Uint
    name: Name
    places: Places


@dataclass(frozen=True, slots=True)
class TakeMoments:
    """Put what the newest complete set of the head has of these tensors into the folder `moments` on the node."""

    number: Uint
    tensors: Annotated[tuple[Annotated[str, Length(1, 1024)], ...], Length(0, TENSORS_MAX)]


@dataclass(frozen=True, slots=True)
class GiveMoments:
    """Put this file, which is whole in the folder `moments` on the node, into the head's set of `step`."""

    number: Uint
    step: Uint
    file: Name
    size: Uint


@dataclass(frozen=True, slots=True)
class Moved:
    """It is so; or `problem` says why not."""

    number: Uint
    problem: Lines = ""
