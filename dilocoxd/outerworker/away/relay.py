"""Passes on what daemon and part say to each other, with the bytes that each needs of the other in front of it.

Two threads: one takes requests and sends the node what they read; the other takes answers and holds each back until
the head has what it is about. Bytes and messages share one ordered connection, so nothing else keeps them in order.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ipc.client import LINK_LOST_STATUS, DaemonConnection, DaemonGone
from dilocoxd.ipc.nodes.faults import HEARD_S, NodeFault, full_fault, mute_fault
from dilocoxd.ipc.sealed import status_of_end
from dilocoxd.outerworker.away.files import Files
from dilocoxd.outerworker.away.moves import Moves, Stretch
from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.failure import from_store
from dilocoxd.outerworker.journal import UpdateJournal
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.results.left_out import LeavingOut
from dilocoxd.outerworker.snapshot import SnapshotWriter
from dilocoxd.outerworker.workspace import Workspace
from dilocoxd.store.durable import store_error, write_all
from dilocoxd.wire.local import buffers as local_buffers, node
from dilocoxd.wire.local.inlets import FROM_INLET, TO_INLET, PayloadHeard, PayloadHere, PayloadsThere
from dilocoxd.wire.local.outer_parts import HashSnapshot, PartAdopted
from dilocoxd.wire.local.outer_worker import LoadState, Settle, Settled, StateReady
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.uploads import FROM_NODE, TO_NODE
from dilocoxd.wire.local.worker import Attach, Stop, WorkerFailed, WorkerHello

STOP_S: Final = 5.0
DETAIL_MAX: Final = 1000


class NodeGone(Exception):
    """The node, or the part on it, has ended."""

    def __init__(self, reason: str, fault: NodeFault | None = None) -> None:
        super().__init__(reason)
        self.fault = fault


def fault_of(error: Exception) -> NodeFault | None:
    """Of the node; None: it tells of something else."""
    return error.fault if isinstance(error, NodeGone) else mute_fault(error)


def hello_of(plan: OuterPlan) -> WorkerHello:
    """Of the part that this process stands for."""
    generation = int(os.environ.get("DILOCOXD_GENERATION", "0"))
    return WorkerHello("outer", os.getpid(), generation, plan.part.index, plan.part.num_parts)


class NodeEnd(Protocol):
    """The node's end (ipc/sealed.py)."""

    def send(self, message: Any) -> None: ...

    def receive(self) -> Any: ...


@dataclass(slots=True)
class _HeldBack:
    """An answer that waits for bytes; `left`: of how many fetches."""

    request: Any
    answer: Any
    left: int
    problem: str = ""


@dataclass(slots=True)
class _Fetching:
    """Where fetched bytes go, and how far they are."""

    held: _HeldBack
    write: Callable[[int, bytes], None]
    stop: int
    close: Callable[[], None]


class Relay:
    """Of one life of a part."""

    def __init__(self, daemon: DaemonConnection, link: NodeEnd, plan: OuterPlan, folder: Path) -> None:
        self._daemon = daemon
        self._link = link
        self._plan = plan
        self._folder = folder
        self._report = Reporter(daemon)
        self._moves = Moves(plan)
        self._sending = threading.Lock()
        self._asked: dict[int, Any] = {}
        self._fetching: dict[int, _Fetching] = {}
        self._there: set[Stretch] = set()
        """Came to the node without us, so that ours are other bytes."""
        self._number = 0
        self._workspace: Workspace | None = None
        self._files: Files | None = None
        self._snapshots: SnapshotWriter | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Until Stop. Raises DaemonGone, NodeGone, OSError, WireError; what the other thread meets ends the process."""
        self._report.send(hello_of(self._plan))
        threading.Thread(target=self._answers, name="answers of the node", daemon=True).start()
        while True:
            message = self._daemon.receive()
            if isinstance(message, Stop):
                self._pass_on(message)
                self._ended.wait(STOP_S)
                return
            self._hear(message)

    def _hear(self, message: Any) -> None:
        """Anything else that the daemon says."""
        match message:
            case Attach():
                self._attach()
                self._pass_on(message)
            case PayloadHere(buffer, offset, length):
                self._there.discard(Stretch(buffer, offset, offset + length))
            case PayloadsThere(buffer, places):
                both = zip(places[::2], places[1::2], strict=True)
                self._there = {Stretch(buffer, offset, offset + length) for offset, length in both}
            case PayloadHeard(_, buffer, offset, length):
                self._there.add(Stretch(buffer, offset, offset + length))
                self._pass_on(message)
            case _ if isinstance(message, (*TO_NODE, *TO_INLET)):
                self._pass_on(message)
            case HashSnapshot():
                assert self._snapshots is not None
                self._snapshots.hash_chunks(message)  # here is all that the part wrote
            case _:
                self._ask(message)

    def _attach(self) -> None:
        buffers = MappedBuffers(self._plan, self._daemon.buffers, self._daemon.descriptors)
        # Journal and memory of the part are on the node: ours are empty, and tell where things lie.
        journal = UpdateJournal(buffers.journal, self._plan.sha256)
        self._workspace = Workspace(self._plan, buffers, journal, self._report)
        self._files = Files(self._workspace, self._moves, self._folder)
        self._snapshots = SnapshotWriter(self._workspace)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _ask(self, request: Any) -> None:
        assert self._files is not None and self._workspace is not None
        try:
            for name in self._files.replaced(request):
                self._send(node.RemovePath(name))
            kept = self._files.kept(request)
            if kept is not None:
                self._send(kept)
            for sent in self._files.sent(request):
                self._send_file(sent.path, sent.name, sent.stretches)
        except StoreError as error:
            self._refuse(request, error)
            return
        if isinstance(request, Settle) or (isinstance(request, LoadState) and not request.is_check):
            LeavingOut(self._workspace).forget()  # what the part writes anew comes with its answer
        for each in self._moves.before(request):
            if each not in self._there:
                self._send_buffer(each.name, each.first, each.stop)
        self._asked[request.request] = request
        self._pass_on(self._files.named(request))

    def _refuse(self, request: Any, error: StoreError) -> None:
        failure = from_store(error)
        kind = "corrupt_snapshot" if isinstance(request, LoadState) else failure.kind
        self._report.send(WorkerFailed(request.request, kind, failure.detail))

    def _pass_on(self, message: Any) -> None:
        self._send(node.ToPart(LOCAL_MESSAGES.encode(message)))

    def _send(self, message: Any) -> None:
        with self._sending:
            self._link.send(message)

    def _send_buffer(self, name: str, first: int, stop: int) -> None:
        held = memoryview(self._daemon.buffers[name])
        for start in range(first, stop, node.PIECE_BYTES):
            piece = bytes(held[start : min(start + node.PIECE_BYTES, stop)])
            self._send(node.WriteBuffer(name, start, piece))
            self._report.pulse("move", start - first, stop - first)

    def _send_file(self, path: Path, name: str, stretches: tuple[tuple[int, int], ...]) -> None:
        """Raises StoreError if ours cannot be read."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise store_error("reading for a node", path, error) from error
        try:
            self._send(node.MakeFile(name, os.fstat(fd).st_size))
            for first, stop in stretches:
                for start in range(first, stop, node.PIECE_BYTES):
                    self._send(node.WriteFile(name, start, _piece(fd, path, start, stop)))
                    self._report.pulse("move", start - first, stop - first)
        finally:
            os.close(fd)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answers(self) -> None:
        """A thread: until the part has ended."""
        try:
            while True:
                self._take(self._link.receive())
        except (DaemonGone, NodeGone, EOFError, OSError, WireError) as error:
            fault = fault_of(error)
            sys.stderr.write(f"outer part {self._plan.part.index}: {fault.detail if fault is not None else error}\n")
            sys.stderr.flush()
            if fault is not None:
                self.tell(fault)
            if not self._ended.is_set():  # the other thread waits for the daemon
                os._exit(LINK_LOST_STATUS if fault is not None else status_of_end(error))

    def tell(self, fault: NodeFault) -> None:
        """The daemon hears of the node, and ends us."""
        with contextlib.suppress(DaemonGone):
            self._report.send(fault.message())
            time.sleep(HEARD_S)  # the other thread sees the daemon's end of it

    def _take(self, message: Any) -> None:
        match message:
            case node.FromPart(body):
                self._said(LOCAL_MESSAGES.decode(body))
            case node.Fetched():
                self._fetched(message)
            case node.PartEnded(reason):
                if reason == "exit status 0":
                    self._ended.set()
                raise NodeGone(reason, full_fault(message))
            case _:
                raise WireError("unexpected_message", f"{type(message).__name__} from a node")

    def _said(self, answer: Any) -> None:
        if isinstance(answer, WorkerHello) or answer is None:
            return  # we have said ours
        if isinstance(answer, (*FROM_NODE, *FROM_INLET)):
            self._report.send(answer)  # of the node itself, with numbers of their own
            return
        request = self._asked.pop(getattr(answer, "request", -1), None)
        if request is None or isinstance(answer, WorkerFailed) or self._files is None:
            self._report.send(self._located(answer))
            return
        stretches, brought = self._moves.after(request, answer), self._files.brought(request, answer)
        held = _HeldBack(request, answer, len(stretches) + len(brought))
        for each in stretches:
            view = memoryview(self._daemon.buffers[each.name])
            self._fetch(held, each.name, (each.first, each.stop), _into(view), lambda: None, is_file=False)
        for file in brought:
            try:
                fd = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                held.problem, held.left = f"writing a snapshot: {error}", held.left - 1
                continue
            place = (file.first, file.stop)
            self._fetch(held, file.name, place, _to_file(fd), _durable(fd), is_file=True)
        if not held.left:
            self._answer(held)

    def _located(self, answer: Any) -> Any:
        """The paths that it names are none of this machine."""
        if not isinstance(answer, WorkerFailed) or answer.kind not in ("disk_full", "store"):
            return answer
        where = f"on the node of outer part {self._plan.part.index}: "
        return replace(answer, detail=f"{where}{answer.detail}"[:DETAIL_MAX])

    def _fetch(
        self,
        held: _HeldBack,
        name: str,
        place: tuple[int, int],
        write: Callable[[int, bytes], None],
        close: Callable[[], None],
        *,
        is_file: bool,
    ) -> None:
        self._number += 1
        self._fetching[self._number] = _Fetching(held, write, place[1], close)
        self._send(node.FetchBytes(self._number, is_file, name, *place))

    def _fetched(self, got: node.Fetched) -> None:
        wanted = self._fetching.get(got.number)
        if wanted is None:
            raise WireError("unexpected_message", "bytes from a node that nobody asked for")
        problem, end = got.problem, got.offset + len(got.data)
        if not problem:
            if end > wanted.stop:
                raise WireError("too_large", "more bytes from a node than were asked for")
            try:
                wanted.write(got.offset, got.data)
                if end < wanted.stop:
                    self._report.pulse("move", 1, 2)
                    return
            except OSError as error:
                problem = f"writing a snapshot: {error}"
        wanted.held.problem = wanted.held.problem or problem
        if end < wanted.stop and not got.problem:
            wanted.write = lambda offset, data: None  # what is still on its way goes nowhere
            return
        del self._fetching[got.number]
        try:
            wanted.close()
        except OSError as error:
            wanted.held.problem = wanted.held.problem or f"writing a snapshot: {error}"
        wanted.held.left -= 1
        if not wanted.held.left:
            self._answer(wanted.held)

    def _answer(self, held: _HeldBack) -> None:
        assert self._files is not None
        request, answer = held.request, held.answer
        for name in self._files.done_with(request, answer):
            self._send(node.RemovePath(name))
        if held.problem:
            self._report.send(WorkerFailed(request.request, "store", held.problem[:1000]))
            return
        if isinstance(answer, Settled):
            self._settled(request)
        state = answer.state if isinstance(answer, PartAdopted) else answer
        if isinstance(state, StateReady):
            self._moves.lowrank_r = state.lowrank_r
            self._mapped.lowrank_r = state.lowrank_r
        self._report.send(self._files.answered(request, answer))

    @property
    def _mapped(self) -> MappedBuffers:
        assert self._workspace is not None
        return self._workspace.buffers

    def _settled(self, request: Settle) -> None:
        """What the part would have given back, if its memory were ours; and OUTBOX, which the daemon clears here."""
        self._send(node.PunchBuffer(local_buffers.OUTBOX))
        for owned in request.owned:
            if self._plan.holds(owned.segment):
                for share in owned.shares:
                    self._mapped.release_share(share, owned.pass_index, owned.segment)


def _piece(fd: int, path: Path, start: int, stop: int) -> bytes:
    """Raises StoreError: an OSError would pass for the end of the connection, which is held against nobody."""
    try:
        return os.pread(fd, min(node.PIECE_BYTES, stop - start), start)
    except OSError as error:
        raise store_error("reading for a node", path, error) from error


def _into(view: memoryview) -> Callable[[int, bytes], None]:
    def write(offset: int, data: bytes) -> None:
        view[offset : offset + len(data)] = data

    return write


def _to_file(fd: int) -> Callable[[int, bytes], None]:
    def write(offset: int, data: bytes) -> None:
        write_all(fd, data, offset)

    return write


def _durable(fd: int) -> Callable[[], None]:
    def close() -> None:
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    return close
