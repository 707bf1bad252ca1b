"""Payloads that are on their way: which pieces of each are in their place here, and that a place has one writer; what
of one of ours is left to send.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.pieces import EarlyPieces, HashInOrder, PieceSet, Region
from dilocoxd.wire.messages import SegmentHeader

ASSEMBLIES_MAX: Final = 4096
"""Payloads whose bitmaps the receiver remembers; the least recently used is forgotten, and would start again."""
EARLY_PIECES_MAX: Final = 4
"""Pieces that a lane sends before its offer is answered (S8)."""


@dataclass(slots=True)
class Assembly:
    """One payload, and what is here of it."""

    region: Region
    pieces: PieceSet
    hashed: HashInOrder
    is_verified: bool = False
    is_forgotten: bool = False
    """Set when its region may be used for something else: lanes that still run must not write any more."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Assemblies:
    """At most ASSEMBLIES_MAX of them, one for each offer."""

    def __init__(self) -> None:
        self._assemblies: OrderedDict[tuple[PeerId, SegmentHeader], Assembly] = OrderedDict()
        self.early = EarlyPieces()
        self._writers: dict[Region, tuple[PeerId, SegmentHeader]] = {}  # of each place one payload (S8.9)

    def of(self, peer: PeerId, header: SegmentHeader, region: Region) -> Assembly:
        """That of this offer; begun anew where its place is another one than before. Raises WireError `busy` while
        another payload is on its way to the place."""
        key = (peer, header)
        if (writer := self._writers.get(region, key)) != key:
            if not self._assemblies[writer].is_verified:
                raise WireError("busy", "another payload is on its way to this place")
            self._forget(writer)
        assembly = self._assemblies.get(key)
        if assembly is None or assembly.region != region:
            if assembly is not None:
                self._forget(key)
            assembly = self._assemblies[key] = Assembly(region, PieceSet(region.num_pieces), HashInOrder(self.early))
            self._writers[region] = key
            while len(self._assemblies) > ASSEMBLIES_MAX:
                self._forget(next(iter(self._assemblies)))
        self._assemblies.move_to_end(key)
        return assembly

    def forget(self, is_over: Callable[[SegmentHeader], bool]) -> None:
        """Those whose regions may be used again."""
        for key in [key for key in self._assemblies if is_over(key[1])]:
            self._forget(key)

    def drop(self, peer: PeerId, header: SegmentHeader) -> None:
        """The one of this offer; another peer may have made the same one."""
        if (peer, header) in self._assemblies:
            self._forget((peer, header))

    def is_whole(self, assembly: Assembly) -> None:
        """What of it is left to hash is read from its place: early pieces need not wait in memory."""
        self.early.forget(assembly.hashed)

    def begin_anew(self, assembly: Assembly) -> None:
        """Nothing that came for it is believed."""
        assembly.pieces.clear()
        assembly.hashed = HashInOrder(self.early)

    def _forget(self, key: tuple[PeerId, SegmentHeader]) -> None:
        (assembly := self._assemblies.pop(key)).is_forgotten = True
        self.early.forget(assembly.hashed)
        del self._writers[assembly.region]


@dataclass(slots=True)
class Sending:
    """One try to bring a payload to a peer, by several lanes."""

    peer: PeerId
    header: SegmentHeader
    source: Region
    is_new: bool
    num_lanes: int
    claimed: set[int] = field(default_factory=set)
    """Pieces that a lane sends, or has sent."""
    num_bytes: int = 0
    """Of pieces that were sent."""

    def claim(self, index: int) -> bool:
        """Whether this piece is still to be sent; it is the caller's then."""
        is_free = index not in self.claimed
        self.claimed.add(index)
        return is_free

    @property
    def is_shared_out(self) -> bool:
        """Nothing is left for a lane whose offer was not answered yet and that sent what it may (S8): all is claimed,
        or is the others' share. Should one of them fail, the next try sends what was its."""
        share = self.num_lanes * EARLY_PIECES_MAX
        return self.is_new and max(len(self.claimed), share) >= self.source.num_pieces

    def next_early(self, sent: Sequence[int]) -> int | None:
        """The next piece of a lane that sent these before its offer was answered, claimed; None: no more."""
        if not self.is_new or len(sent) >= EARLY_PIECES_MAX:
            return None
        return next((index for index in range(self.source.num_pieces) if self.claim(index)), None)
