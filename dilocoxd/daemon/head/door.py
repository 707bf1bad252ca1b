"""The head's door for nodes (docs/adr/0035-a-site-on-several-machines.md): lets in who has the node key.

A connection that was let in waits until an outer part or a pipeline stage needs it; then a process in their place takes
it over. Nothing of the model passes through here.
"""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from dilocoxd import __version__
from dilocoxd.answers.nodes import NodeAside
from dilocoxd.config.addresses import socket_family
from dilocoxd.config.footprint.nodes import NO_NEEDS, NodeNeeds
from dilocoxd.daemon.head.aside import SetAside
from dilocoxd.daemon.head.clocks import Clocks
from dilocoxd.daemon.head.room import NOT_LET_IN, NotLetIn, why_no_room
from dilocoxd.daemon.head.silences import BorneSilences
from dilocoxd.daemon.head.waiting import Held, NodeProcess, WaitingNode, started_anew
from dilocoxd.daemon.process.torch_release import torch_release
from dilocoxd.daemon.workers.forked import PlaceLost, Workers
from dilocoxd.errors import ConfigError, WireError, WorkerError
from dilocoxd.ipc.accepting import accepted
from dilocoxd.ipc.sealed import (
    FRONT_BYTES,
    LENGTH,
    SILENCE_S,
    Seal,
    end_when_silent,
    greeting,
    heard_s,
    length_of,
    new_salt,
    salt_of,
)
from dilocoxd.wire.local.node import PART_PLACE, STAGE_PLACE, HeadHello, NodeHello, NodeRefused, other_version

SAME_VERSION: Final = "install the same version on both"
START_AGAIN: Final = "what it held in memory is gone, so start this site again: it goes on from its files"
GREET_TIMEOUT_S: Final = 10.0
GREETED_MAX: Final = 32
"""Connections that have not shown the key yet; one more, and one of the address with most is closed, the one that has
been silent for longest: who has the key shows it at once, and strangers who say nothing keep no node out."""
HELLO_BYTES_MAX: Final = 4096
"""Of a first message: nobody has the room of a larger one before the key was shown."""
WAITING_MAX: Final = 256
LOOK_S: Final = 1.0
"""So often who waits looks anew."""
CHOICE_S: Final = 5.0
"""So long a part waits for the node that has files of it before any other will do, be it a place without a past."""
FOLLOWS_S: Final = 30.0
"""Who was here for longer than this before a node was missed ran beside it: a machine that is gone is missed after 5 s,
and a pause of 5 s may come before its part is to start again."""
MET_MAX: Final = 1024
GRACE_S: Final = 60.0
"""So long a part waits for the node that has its buffers, where another one has room. Where none has, a new start would
help nobody: it waits on, for a node that was only cut off has all of it still."""


class NodeDoor:
    """`listen`, then `serve`; `take` is for a part, `take_all` for the stages of a generation."""

    def __init__(
        self,
        host: str,
        port: int,
        key: bytes,
        incarnation: str,
        grace_s: float = GRACE_S,
        needs: NodeNeeds = NO_NEEDS,
    ) -> None:
        """`incarnation`: names this start of the head. `grace_s`: see GRACE_S. `needs`: of what runs on nodes."""
        self._needs = needs
        self._grace_s = grace_s
        self._incarnation, self._num_incarnations = incarnation, 0
        self.refused = NotLetIn()
        self.address = (host, port)
        self._key = key
        self._socket: socket.socket | None = None
        self._waiting: list[WaitingNode] = []
        self._greeted: dict[socket.socket, str] = {}
        """With the address of each, in the order in which they came."""
        self._met: dict[str, float] = {}
        """When each start of `dilocoxd node` came first, of the newest MET_MAX."""
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._group: asyncio.TaskGroup | None = None
        self._silences = BorneSilences(self._num_free_stages)
        self._aside = SetAside()
        self.clocks = Clocks()

    @property
    def num_waiting(self) -> int:
        """Connections that a part or a stage could take."""
        self._forget_dead()
        return len(self._waiting)

    def listen(self) -> None:
        """Raises ConfigError if the address is taken or not ours."""
        host, port = self.address
        try:
            family = socket_family(host)
            self._socket = socket.create_server((host, port), family=family, backlog=GREETED_MAX)
        except OSError as error:
            raise ConfigError(
                f"cluster.host = {host}, cluster.port = {port}: cannot listen there for nodes ({error.strerror});"
                " choose an address of this machine and a free port"
            ) from error
        self._socket.setblocking(False)
        self.address = self._socket.getsockname()[:2]

    def lost_address(self) -> str:
        """The address that we listen on, if this machine has it no more: nobody can come then. Empty otherwise."""
        host = str(self.address[0])
        with socket.socket(socket_family(host), socket.SOCK_DGRAM) as sock:
            try:
                sock.bind((host, 0))
            except OSError as error:
                return host if error.errno == errno.EADDRNOTAVAIL else ""
        return ""

    async def serve(self) -> None:
        """Accept until cancelled."""
        assert self._socket is not None
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                async for sock, address in accepted(self._socket):
                    host = str(address[0])
                    if len(self._greeted) >= GREETED_MAX:
                        self._make_room()
                    self._greeted[sock] = host
                    group.create_task(self._greet(sock, host), name="greeting of a node")
        finally:
            self._group = None
            self._socket.close()
            for node in self._waiting:
                node.sock.close()
            self._waiting.clear()

    def _make_room(self) -> None:
        """Of the address with most connections the oldest: a crowd is fast, but only its own."""
        ((crowd, _),) = Counter(self._greeted.values()).most_common(1)
        oldest = next(sock for sock, host in self._greeted.items() if host == crowd)
        del self._greeted[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its greeting meets the end, and counts

    async def _greet(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(False)
        node: WaitingNode | None = None
        try:
            end_when_silent(sock)
            async with asyncio.timeout(GREET_TIMEOUT_S):
                node = await self._greeting(sock, host)
        except (TimeoutError, OSError, WireError, EOFError) as error:
            self.refused.note(host, error)
        finally:
            self._greeted.pop(sock, None)
            if node is None:
                sock.close()
            else:
                self._meet(node)

    async def _greeting(self, sock: socket.socket, host: str) -> WaitingNode | None:
        """None: it is left alone now. Raises WireError, OSError, EOFError."""
        loop, salt = asyncio.get_running_loop(), new_salt()
        theirs = salt_of(await _exactly(sock, FRONT_BYTES))
        seal = Seal(self._key, salt + theirs, is_head=True)
        await loop.sock_sendall(sock, greeting(salt) + seal.frame(HeadHello(__version__)))
        length = length_of(await _exactly(sock, LENGTH.size))
        if length > HELLO_BYTES_MAX:
            raise WireError("too_large", f"hello of {length} bytes")
        hello: Any = seal.open(await _exactly(sock, length))
        if not isinstance(hello, NodeHello):
            raise WireError("unexpected_message", "no hello of a node")
        node = WaitingNode(sock, salt + theirs, hello, host)
        if why := self._aside.why(node, loop.time()):
            node.refuse(self._key, why)
            return None
        if refused := self._refusal(node):
            await loop.sock_sendall(sock, seal.frame(refused))
            raise WireError(NOT_LET_IN, refused.reason)
        return node

    def set_aside(self, node: WaitingNode, why: str) -> None:
        """It answered nothing, or has no disk left: no place of it is taken for a while, and it hears why."""
        self._aside.note(node, why, asyncio.get_running_loop().time())
        for each in [each for each in self._waiting if each.process == node.process]:
            self._waiting.remove(each)
            each.refuse(self._key, why)

    @property
    def aside(self) -> tuple[NodeAside, ...]:
        """Nodes that are left alone."""
        return self._aside.told(asyncio.get_running_loop().time())

    def _refusal(self, node: WaitingNode) -> NodeRefused | None:
        """Who has shown the key is told. None: it may wait."""
        self._forget_dead()
        version = node.hello.version
        if version != __version__:
            return NodeRefused(f"{other_version(of_head=__version__, of_node=version)}; {SAME_VERSION}", is_final=True)
        if reason := why_no_room(node.hello, node.who, self._needs, torch_release()):
            return NodeRefused(reason, is_final=True)
        if len(self._waiting) >= WAITING_MAX:
            return NodeRefused(f"{WAITING_MAX} places of nodes wait there, as many as may; start nodes with fewer")
        return None

    def _meet(self, node: WaitingNode) -> None:
        self._met.setdefault(node.process.start, asyncio.get_running_loop().time())
        if len(self._met) > MET_MAX:
            del self._met[next(iter(self._met))]
        self.clocks.note(node, time.time())
        self._waiting.append(node)
        self._changed.set()

    def new_incarnation(self) -> str:
        """Names buffers that a node is to make: no two are called the same."""
        self._num_incarnations += 1
        return f"{self._incarnation}-{self._num_incarnations}"

    def _is_of_this_start(self, node: WaitingNode) -> bool:
        return node.hello.incarnation.startswith(f"{self._incarnation}-")

    def stop(self) -> None:
        """Nobody is given a connection any more."""
        self._is_stopping = True
        self._changed.set()

    async def take(
        self,
        served: str,
        waits: Callable[[], None],
        *,
        holds: Held | None = None,
        patience_s: float = CHOICE_S,
        last: NodeProcess | None = None,
    ) -> WaitingNode:
        """A connection for the part that is called `served`, for the caller to close.

        `waits` is called when there is none yet. `holds`: its buffers are on the node that says this, and only
        there it can go on.
        `patience_s`: 0 where no node has files that are of use. `last`: had it last; started anew it is waited for no
        longer, whatever its files. Raises PlaceLost when the buffers are gone, WorkerError when the site stops.
        """
        loop = asyncio.get_running_loop()
        started, has_told = loop.time(), False
        while not self._is_stopping:
            waited = loop.time() - started
            self._forget_dead()
            node = self._chosen(
                served, holds=holds, is_patient=waited < patience_s, last=last, lost_at=started
            )  # fmt: skip
            if node is not None:
                self._waiting.remove(node)
                return node
            if not has_told:
                has_told = True
                waits()
            if holds and waited >= self._grace_s and self._chosen(served, holds=None, is_patient=False) is not None:
                raise PlaceLost(
                    f"its node did not come back within {self._grace_s:g} s and another one has room; {START_AGAIN}"
                )
            await self._until_changed()
        raise WorkerError("the site stops")

    async def take_all(
        self,
        served: Sequence[str],
        patience_s: Sequence[float],
        seen: Callable[[int, WaitingNode | None], None],
        lasts: Sequence[NodeProcess | None] = (),
    ) -> list[WaitingNode]:
        """A connection for each of the stages that are called so, in this order, for the caller to close.

        None is taken before there is one for each: the door sees the end of those that wait, and nobody that of
        those that were taken. `seen(index, node)` is called at each look, with what a stage would have now.
        `patience_s`: so long a stage has only the node that ran it; `lasts`: which that was. Raises WorkerError when
        the site stops.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        while not self._is_stopping:
            waited = loop.time() - started
            self._forget_dead()
            found = self._matched(served, [waited < each for each in patience_s], lasts or [None] * len(served))
            for index, node in enumerate(found):
                seen(index, node)
            nodes = [node for node in found if node is not None]
            if len(nodes) == len(served):
                self._waiting = [each for each in self._waiting if each not in nodes]
                return nodes
            await self._until_changed(min([each - waited for each in patience_s if each > waited], default=LOOK_S))
        raise WorkerError("the site stops")

    def mind(self, node: WaitingNode, workers: Workers, grace_s: float, note: Callable[[bool], None]) -> None:
        """Bear the silence of a node that a stage has taken: see BorneSilences."""
        if self._group is not None and not self._is_stopping and grace_s > SILENCE_S:
            with contextlib.suppress(OSError):  # no descriptor is left: the process in the stage's place looks too
                # Not `sock.dup`: it has the process that reads from the connection find it non-blocking, as it is here.
                own = socket.socket(fileno=os.dup(node.sock.fileno()))
                minding = self._silences.mind(own, workers, grace_s, note)
                self._group.create_task(minding, name="silence of a node")

    def _num_free_stages(self, answered_s: float) -> int:
        self._forget_dead()
        waiting = [each for each in self._waiting if each.hello.kind == STAGE_PLACE]
        return sum(heard_s(each.sock) < answered_s for each in waiting)

    async def _until_changed(self, limit_s: float = LOOK_S) -> None:
        """At most for a look's time: nobody tells of connections that end."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(limit_s, LOOK_S)):
                await self._changed.wait()

    def _forget_dead(self) -> None:
        for node in [each for each in self._waiting if not each.is_alive()]:
            node.sock.close()
            self._waiting.remove(node)

    def _matched(
        self, served: Sequence[str], is_patient: Sequence[bool], lasts: Sequence[NodeProcess | None]
    ) -> list[WaitingNode | None]:
        """Each stage's own node first: one that misses its node does not take that of another, which would then miss
        one in its turn, and the operator would hear of the wrong machine."""
        free = [each for each in self._waiting if each.hello.kind == STAGE_PLACE]
        own: list[WaitingNode | None] = []
        for name in served:
            own.append(next((each for each in free if each.hello.served == name), None))
            free = [each for each in free if each is not own[-1]]
        for index, last in enumerate(lasts):
            if own[index] is None:
                own[index] = started_anew(free, last)
                free = [each for each in free if each is not own[index]]
        free.sort(key=lambda each: bool(each.hello.served))
        return [
            node or (free.pop(0) if free and not waits_on else None)
            for node, waits_on in zip(own, is_patient, strict=True)
        ]

    def _after(self, ended: NodeProcess, own: Sequence[WaitingNode], lost_at: float) -> WaitingNode | None:
        """A place of the node that this process ran on, and has ended there. `own`: what has files of the part;
        `lost_at`: when its connection was missed.

        Files name the process that wrote them: of a node that ran the part earlier they are no news of this one. A
        node that lost its folder does not know what it ran, and any of its places says that it was started anew.
        Neither says so that was here beside it: of two in one folder the second waits for the first one's lock, so
        its folder is a copy.
        """
        late = [each for each in self._waiting if self._met.get(each.process.start, lost_at) > lost_at - FOLLOWS_S]
        wrote = [each for each in late if each in own and each.ran_by(ended) and each.process.start != ended.start]
        return next(iter([*wrote, *(each for each in late if ended.is_followed_by(each.process))]), None)

    def _chosen(
        self,
        served: str,
        *,
        holds: Held | None,
        is_patient: bool,
        last: NodeProcess | None = None,
        lost_at: float = 0.0,
    ) -> WaitingNode | None:
        waiting = [each for each in self._waiting if each.hello.kind == PART_PLACE]
        own = [each for each in waiting if each.hello.served == served]
        if holds is not None:
            holding = [each for each in own if each.hello.incarnation == holds.incarnation]
            if not holding and (anew := self._after(holds.by, own, lost_at)) is not None:
                raise PlaceLost(f"its node {anew.who} was started anew; {START_AGAIN}")
            return next(iter(holding), None)
        newest = [each for each in own if last is None or each.ran_by(last)]
        if not newest and (again := started_anew(waiting, last)) is not None:
            return again
        if newest or is_patient:
            return next(iter(newest), None)
        if own:  # of a node that had it before: better than none
            return own[0]
        free = [each for each in waiting if not each.hello.served]
        others = [each for each in waiting if not self._is_of_this_start(each)]
        return next(iter([*free, *others]), None)


async def _exactly(sock: socket.socket, size: int) -> bytes:
    """Not a byte more: the process that takes over reads on."""
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < size:
        more = await loop.sock_recv(sock, size - len(data))
        if not more:
            raise EOFError("the node closed the connection")
        data += more
    return bytes(data)
