"""Exchanges that follow each other on one connection: the next one is written while the answers to those before it are
still on their way.

Who waits for an answer before it sends more moves, in each round trip, no more than it had ready: on a long link most
of the time nothing is under way. The other side answers in the order in which it was asked, so each exchange reads
when the one before it has read all. Source: protocol/04-streams.md, S11.5.
"""

from collections.abc import Callable

from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.links import DataLink, Turn
from dilocoxd.swarm.streams.streams import FrameStream
from dilocoxd.wire.frames import Frame, FrameKind


class DataStream(FrameStream):
    """One exchange on a data connection, behind those that it carries already."""

    def __init__(
        self,
        peer: PeerId,
        link: DataLink,
        progress_timeout_s: float,
        *,
        on_written: Callable[[], None],
        on_over: Callable[[bool], None],
    ) -> None:
        """`on_written`: told once, when the connection is free for the next exchange to be written. `on_over`: told
        once, in the order of the exchanges, with whether this one came to its end; the connection is of no use else."""
        super().__init__(peer, link.channel, link.channel, progress_timeout_s=progress_timeout_s)
        self._link = link
        self._before, self._turn = link.newest, Turn()
        self.is_behind = self._before is not None
        link.newest, link.is_written = self._turn, True
        link.num_under_way += 1
        self.omits_digests = link.omits_digests
        self.has_rested = link.idle_since > 0 or self.is_behind
        self._tell_written, self._tell_over = on_written, on_over
        self.on_written, self.give_back = self._written, self._closed

    async def read(self, *expected: FrameKind, timeout_s: float | None = None) -> Frame:
        """As any stream's, with time that counts from when it is its turn: each before it has a limit of its own."""
        if self._before is not None:
            await self._before.wait()
        return await super().read(*expected, timeout_s=timeout_s)

    def _written(self) -> None:
        self.on_written = lambda: None
        self._link.is_written = False
        self._tell_written()

    def _closed(self, is_clean: bool) -> None:
        if not is_clean:  # what it owes or is owed stays between the frames of others
            self._link.is_spoilt = True
        assert self.on_written is not None
        self.on_written()
        if self._before is None:
            self._over(is_clean)
        else:
            self._before.then(lambda: self._over(is_clean))

    def _over(self, is_clean: bool) -> None:
        self._link.num_under_way -= 1
        if not self._link.num_under_way:
            self._link.newest = None
        self._tell_over(is_clean)
        self._turn.end()
