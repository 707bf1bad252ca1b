"""Messages between the daemon and one of several outer parts, beside those that a single outer worker knows.

What could be refused by one part and done by another is asked twice: with `is_check` a part only answers whether it
can (PartReady), and changes nothing. A state that all parts have come to (PartStepped) counts when each is told so
(AdoptState). Source: docs/adr/0030-outer-parts.md.
"""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.wire.codec import Length, Lines, Uint
from dilocoxd.wire.local.buffers import HEADER_BYTES
from dilocoxd.wire.local.figures import Figures
from dilocoxd.wire.local.outer_worker import Round, StateReady

FileStretch = Annotated[tuple[Uint, ...], Length(2, 2)]
"""Bytes [first, stop) of a file of a snapshot that the machine of this part has."""
Header = Annotated[bytes, Length(0, HEADER_BYTES)]
"""Of MEMORY, the same from every part; empty in runs without."""


@dataclass(frozen=True, slots=True)
class PartReady:
    """Answer to a request with `is_check`: this part can do it."""

    request: Uint
    held: Annotated[tuple[FileStretch, ...], Length(0, 8)] = ()
    """LoadState from a folder: of each file, in the order of the index."""


@dataclass(frozen=True, slots=True)
class PartStepped:
    """Answer of a part to ApplyResult and LoadState: its segments are those of state `round`; AdoptState comes next."""

    request: Uint
    round: Round
    seconds: float
    rank_sum: Uint = 0
    """Of the effective ranks of its matrices in the results that were applied (adaptive schedule)."""
    num_ranks: Uint = 0
    figures: Figures = b""
    """Of its segments, in their order: the hashes are those of state `round`."""
    header: Header = b""
    """Of a state that was loaded. The one behind an entry is made when the ranks of all parts are known."""


@dataclass(frozen=True, slots=True)
class AdoptState:
    """All parts stand at state `round`: declare it. Answer: PartAdopted."""

    request: Uint
    round: Round
    rank_sum: Uint
    """Over all parts; likewise `num_ranks`."""
    num_ranks: Uint


@dataclass(frozen=True, slots=True)
class PartAdopted:
    """The state is declared."""

    request: Uint
    header: Header
    state: StateReady
    """Its hashes are of this part alone."""


@dataclass(frozen=True, slots=True)
class HashSnapshot:
    """All parts have written to `directory`, which is not published yet: hash the chunks of each file that lie whole in
    what this machine has of it, in turn with the other parts here (OuterPart.turn)."""

    request: Uint
    directory: Lines
    names: Annotated[tuple[Lines, ...], Length(1, 8)]


@dataclass(frozen=True, slots=True)
class SnapshotHashed:
    request: Uint
    hashes: Annotated[tuple[Annotated[bytes, Length(0, 1 << 24)], ...], Length(1, 8)]
    """By file: sha256 of its chunks of this part, back to back."""
    held: Annotated[tuple[FileStretch, ...], Length(1, 8)]
