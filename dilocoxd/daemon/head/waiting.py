"""Connections of nodes that wait at the head's door, and what is known of the processes that made them."""

import contextlib
import dataclasses
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.daemon.workers.forked import ForkLaunch
from dilocoxd.ipc.client import NODE_KEY_VARIABLE, NODE_SALTS_VARIABLE, NODE_SOCKET_VARIABLE
from dilocoxd.ipc.sealed import Seal, is_silent
from dilocoxd.site_names import is_site_name
from dilocoxd.wire.local.node import NodeHello, NodeRefused


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """One start of `dilocoxd node`."""

    place: tuple[str, ...]
    """Machine and folder; empty: not known."""
    start: str

    def is_followed_by(self, other: "NodeProcess") -> bool:
        """That one runs where this one did: it has ended, with what it held in memory. So it seems from here: two
        machines behind one address may have one name and one folder, as copies of one image have."""
        return bool(self.place) and self.place == other.place and self.start != other.start


@dataclass(frozen=True, slots=True)
class Held:
    """Buffers of a part on a node."""

    incarnation: str
    """`NodeDoor.new_incarnation`."""
    by: NodeProcess


@dataclass(slots=True)
class WaitingNode:
    """A connection of a node that waits for a part."""

    sock: socket.socket
    salts: bytes
    hello: NodeHello
    host: str
    """Address that it came from."""

    @property
    def process(self) -> "NodeProcess":
        """That made it."""
        hello = self.hello
        return NodeProcess((self.host, hello.name, hello.home) if hello.home else (), hello.process)

    def ran_by(self, process: "NodeProcess") -> bool:
        """What its files say that it served was last run by this one."""
        return bool(process.start) and self.hello.ran_by == process.start

    @property
    def who(self) -> str:
        """For people."""
        name = self.hello.name
        return f"{name} ({self.host})" if name and is_site_name(name) else self.host

    def given_to(self, launch: ForkLaunch, module: str, node_key: Path, more: Mapping[str, str]) -> ForkLaunch:
        """`launch` for a process of `module` that takes this connection over; `more`: further environment."""
        (common,) = launch.environments
        added = {NODE_KEY_VARIABLE: str(node_key), NODE_SALTS_VARIABLE: self.salts.hex(), **more}
        passed = {NODE_SOCKET_VARIABLE: self.sock.fileno()}
        return dataclasses.replace(launch, module=module, environments=({**common, **added},), passed=passed)

    def refuse(self, key: bytes, why: str) -> None:
        """Tell it so, unless it reads nothing, and close."""
        seal = Seal(key, self.salts, is_head=True, sent=1, received=1)
        with self.sock, contextlib.suppress(OSError):
            self.sock.send(seal.frame(NodeRefused(why)))

    def is_alive(self) -> bool:
        """Nothing comes from a node that waits, but its end."""
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return not is_silent(self.sock)
        except OSError:
            return False
        return False


def started_anew(waiting: Sequence[WaitingNode], last: NodeProcess | None) -> WaitingNode | None:
    """A place without a past, of the node that `last` ran on: there it would find all that is left there."""
    if last is None:
        return None
    return next((each for each in waiting if not each.hello.served and last.is_followed_by(each.process)), None)
