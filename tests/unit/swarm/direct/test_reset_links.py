"""Peers that die between our connection and our first bytes: what was ours of the descriptors stays ours."""

import asyncio
import gc
import os
import socket
import ssl
import struct
import threading

import pytest
import uvloop

from dilocoxd.errors import PeerError
from dilocoxd.swarm.direct.links import open_link

TRIES = 100
LONG_S = 60.0
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER that resets a connection when it is closed, as a kernel does for a process that is killed."""


def reset_all(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        connection.close()


async def descriptors_lost(port: int) -> int:
    """Of one that is opened after each try, how many somebody else has closed."""
    context = ssl.create_default_context()
    lost = 0
    for _ in range(TRIES):
        with pytest.raises(PeerError):
            await open_link("127.0.0.1", port, context, timeout_s=LONG_S)
        ours = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
        gc.collect()
        await asyncio.sleep(0.002)
        for fd in ours:
            try:
                os.close(fd)
            except OSError:
                lost += 1
    return lost


def test_a_peer_that_resets_costs_no_descriptor_of_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=reset_all, args=(listening,))
        thread.start()
        try:
            assert uvloop.run(descriptors_lost(listening.getsockname()[1])) == 0
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
