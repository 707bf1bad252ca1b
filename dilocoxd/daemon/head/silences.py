"""Nodes with trainers whose machine is silent: how long that is borne, for a cable that is cut is mended soon.

Nothing is lost meanwhile: where no other node has room nobody could train instead, and what ranks say to each other is
sent again by TCP, as is what head and node say. Source: docs/adr/0035-a-site-on-several-machines.md.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from dilocoxd.daemon.workers.forked import Workers
from dilocoxd.ipc.sealed import LOOK_INTERVAL_S, SilenceLimit, silence_s

LATER_S: Final = 3.0
"""Between the last answers of two connections that were cut together: a kernel asks after 2 s, and 1 s later again."""


class BorneSilences:
    """Of connections that stages have taken."""

    def __init__(self, num_free: Callable[[float], int]) -> None:
        """`num_free`: places for stages on machines that have answered within so many seconds."""
        self._num_free = num_free
        self._silent: set[SilenceLimit] = set()

    async def mind(
        self, sock: socket.socket, workers: Workers, grace_s: float, note: Callable[[bool], None]
    ) -> None:  # fmt: skip
        """Until `workers`, who have the connection, are over, or it has to end: its silence has lasted for `grace_s`,
        or others have room for all stages whose nodes are silent.

        `note` is told of each change. Closes `sock`, which is our own end of the connection.
        """
        patience = SilenceLimit(sock, grace_s)
        try:
            while not await _is_over(workers):
                was_tried, is_over = patience.is_tried, patience.look()
                if patience.is_tried != was_tried:
                    (self._silent.add if patience.is_tried else self._silent.discard)(patience)
                    note(patience.is_tried)
                if is_over or (patience.is_tried and self._others_have_room(sock)):
                    sock.shutdown(socket.SHUT_RDWR)
                    return
        except OSError:
            return  # it has ended, and whoever reads from it tells why
        finally:
            self._silent.discard(patience)
            sock.close()

    def _others_have_room(self, silent: socket.socket) -> bool:
        """A place of a machine that was cut off together with this one is none."""
        return self._num_free(silence_s(silent) - LATER_S) >= len(self._silent)


async def _is_over(workers: Workers) -> bool:
    """After a look's time at most."""
    try:
        async with asyncio.timeout(LOOK_INTERVAL_S):
            await workers.first_exit()
    except TimeoutError:
        return False
    return True
