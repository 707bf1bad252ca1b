"""Streams that are closed here, and whose peers take nothing more of what we had written: they end all the same.

A transport that is closed writes what it has, and stays open for as long as that takes: p2pd takes no more of it than
its peer does, which so keeps a descriptor of ours for each stream that it never reads. p2pd keeps one too, for as long
as its own write waits, whatever we do with our end: only the end of the connection to that peer ends it.
"""

import asyncio
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import PeerId

UNREAD_MAX: Final = 16
"""Such streams of one peer; with the next one the connection to it ends. An honest one that stands still has few."""
PEERS_MAX: Final = 1024
"""Of whom such streams are counted; whoever had one first is forgotten."""


@dataclass(slots=True)
class _Written:
    peer: PeerId
    num_left: int = 0
    """Bytes not taken at the last look; 0: it was not closed yet."""


class UnreadStreams:
    """`note` each stream; `look` every few seconds."""

    def __init__(self) -> None:
        self._streams: dict[asyncio.WriteTransport, _Written] = {}
        self._counts: Counter[PeerId] = Counter()

    def note(self, peer: PeerId, writer: asyncio.StreamWriter) -> None:
        """It is open."""
        self._streams[writer.transport] = _Written(peer)

    def look(self, connected: Set[PeerId]) -> list[PeerId]:
        """End those of which nothing was taken since the last look; peers that have too many of them.

        What p2pd kept for a peer is gone with its connection. Each look tells of a peer again, until it is forgotten.
        """
        for peer in self._counts.keys() - connected:
            del self._counts[peer]
        for transport, written in list(self._streams.items()):
            if not transport.is_closing():
                continue
            num_left = transport.get_write_buffer_size()
            if num_left and num_left != written.num_left:
                written.num_left = num_left
                continue
            del self._streams[transport]
            if num_left:
                transport.abort()
                self._counts[written.peer] += 1
        while len(self._counts) > PEERS_MAX:
            del self._counts[next(iter(self._counts))]
        return [peer for peer, count in self._counts.items() if count > UNREAD_MAX]

    def forget(self, peer: PeerId) -> None:
        """Its connection has been ended."""
        del self._counts[peer]
