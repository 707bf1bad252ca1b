"""Who stands for the trainers of a stage, against a node that has the key and asks for what it must not have."""

import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ipc.client import DaemonConnection
from dilocoxd.ipc.hang_files import collectives_name, live_folder
from dilocoxd.ipc.sealed import LENGTH, Seal, SealedSocket
from dilocoxd.trainer.away.hang import SharedLink, forget_told
from dilocoxd.trainer.away.relay import StageEnded, StageRelay
from dilocoxd.trainer.checkpoint import newest_complete
from dilocoxd.wire.local import buffers, node
from dilocoxd.wire.local.frames import frame, take_message
from dilocoxd.wire.local.moves import GiveBytes, GiveMoments, Moved, TakeBytes, TakeMoments
from dilocoxd.wire.local.node import NODE_MESSAGE_BYTES_MAX
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import Attach, WorkerAlive, WorkerHello

KEY, SALTS = bytes(range(32)), bytes(64)
SIZE = 8192
START = node.StartStage("0123456789abcdef.stage1of2", 1, 1, 2, 1, "", b"", b"", 0)
HELLO = WorkerHello("trainer", 1, 1, 1, 2)
WAIT_S = 60.0


@dataclass
class Ends:
    """Of the relay: daemon and node, and how it ended."""

    node: SealedSocket
    raw: socket.socket
    daemon: socket.socket
    files: dict[str, int]
    checkpoints: Path
    ended: list[Exception]
    thread: threading.Thread

    def say(self, message: Any) -> None:
        self.node.send(node.FromPart(LOCAL_MESSAGES.encode(message)))

    def hear(self) -> Any:
        """What the node gets next; of what goes to its trainer the message."""
        message = self.node.receive()
        return LOCAL_MESSAGES.decode(message.body) if isinstance(message, node.ToPart) else message

    def end(self) -> Exception:
        self.thread.join(WAIT_S)
        return self.ended[0]


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """A relay whose trainer has said hello."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        server.bind(str(tmp_path / "sock"))
        server.listen()
        monkeypatch.setenv("DILOCOXD_SOCKET", str(tmp_path / "sock"))
        head, there = (stack.enter_context(each) for each in socket.socketpair())
        there.settimeout(WAIT_S)
        sockets: list[DaemonConnection] = []
        shared = SharedLink(SealedSocket(head, Seal(KEY, SALTS, is_head=True)))
        relay = StageRelay(shared, START, tmp_path, sockets.append)
        ended: list[Exception] = []

        def run() -> None:
            try:
                relay.run()
            except (StageEnded, WireError, EOFError, OSError) as error:
                ended.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        link = SealedSocket(there, Seal(KEY, SALTS, is_head=False))
        files = {name: os.memfd_create(name) for name in (buffers.ANCHOR, buffers.PHASE, buffers.LEFT_OUT)}
        link.send(node.FromPart(LOCAL_MESSAGES.encode(HELLO)))
        daemon = stack.enter_context(server.accept()[0])
        daemon.settimeout(WAIT_S)
        hello = take_message(bytearray(daemon.recv(1 << 16)))
        assert (hello.role, hello.stage_rank, hello.num_stages, hello.pid) == ("trainer", 1, 2, os.getpid())
        for descriptor in files.values():
            os.ftruncate(descriptor, SIZE)
        socket.send_fds(daemon, [frame(Attach(tuple(files), (SIZE,) * len(files)))], list(files.values()))
        made = Ends(link, there, daemon, files, tmp_path / "site" / "trainer", ended, thread)
        assert isinstance(made.hear(), Attach)
        yield made
        there.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_S)


def test_stretches_go_and_come_and_the_rest_stays(ends: Ends) -> None:
    os.pwrite(ends.files[buffers.ANCHOR], b"a" * SIZE, 0)
    os.pwrite(ends.files[buffers.PHASE], b"p" * SIZE, 0)
    ends.say(TakeBytes(1, buffers.ANCHOR, (0, 8, 100, 104)))
    assert [ends.hear() for _ in range(3)] == [
        node.WriteBuffer(buffers.ANCHOR, 0, b"a" * 8), node.WriteBuffer(buffers.ANCHOR, 100, b"a" * 4), Moved(1)
    ]  # fmt: skip
    ends.say(GiveBytes(2, buffers.PHASE, (4, 8, 16, 20)))
    for first in (4, 16):
        wanted = ends.hear()
        assert (wanted.name, wanted.first, wanted.stop, wanted.is_file) == (buffers.PHASE, first, first + 4, False)
        ends.node.send(node.Fetched(wanted.number, first, b"wwww"))
    assert ends.hear() == Moved(2)
    assert os.pread(ends.files[buffers.PHASE], 24, 0) == b"ppppwwwwppppppppwwwwpppp"
    ends.say(WorkerAlive("forward", 5))
    assert take_message(bytearray(ends.daemon.recv(1 << 16))) == WorkerAlive("forward", 5), "all else is the daemon's"


def test_what_nobody_wrote_takes_no_memory_when_it_is_read(ends: Ends) -> None:
    ends.say(TakeBytes(1, buffers.LEFT_OUT, (0, SIZE)))
    assert ends.hear() == node.WriteBuffer(buffers.LEFT_OUT, 0, bytes(SIZE))
    assert ends.hear() == Moved(1)
    assert os.fstat(ends.files[buffers.LEFT_OUT]).st_blocks == 0


def test_checkpoint_appears_whole_and_a_file_that_cannot_be_read_does_not(ends: Ends) -> None:
    for number, problem in ((1, "the node cannot read it"), (2, "")):
        ends.say(GiveMoments(number, 7, "stage-0-of-1.safetensors", 5))
        wanted = ends.hear()
        assert wanted.is_file and wanted.name == "moments/1/000000000007/stage-0-of-1.safetensors"
        ends.node.send(node.Fetched(wanted.number, 0, b"" if problem else b"bytes", problem))
        assert ends.hear() == node.RemovePath("moments/1/000000000007")
        assert ends.hear() == Moved(number, problem)
        assert (newest_complete(ends.checkpoints) is None) == bool(problem)
    assert (ends.checkpoints / "000000000007" / "stage-0-of-1.safetensors").read_bytes() == b"bytes"
    ends.say(TakeMoments(3, ("wte.exp_avg",)))
    assert ends.hear() == node.RemovePath("moments/1")
    assert "reading a checkpoint for a node" in ends.hear().problem, "that was no file of tensors"


def test_checkpoint_that_cannot_be_kept_leaves_neither_bytes_nor_a_descriptor(ends: Ends) -> None:
    """A full disk: each boundary would leave one more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        ends.say(GiveMoments(1, 7, "stage-0-of-1.safetensors", 5))
        wanted = ends.hear()
        ends.node.send(node.Fetched(wanted.number, 0, b"bytes"))
        assert ends.hear() == node.RemovePath("moments/1/000000000007")
        assert "File too large" in ends.hear().problem
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(ends.checkpoints.rglob("*"))
    held = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [path for path in held if ".stage-0-of-1.safetensors" in path]


@pytest.mark.parametrize(
    "message",
    [
        TakeBytes(1, buffers.PHASE, (0, SIZE + 1)),
        TakeBytes(1, buffers.PHASE, (8, 4)),
        TakeBytes(1, buffers.PHASE, (8,)),
        TakeBytes(1, buffers.FEEDBACK, (0, 4)),
        GiveBytes(1, buffers.ANCHOR, (0, 4)),
        GiveBytes(1, buffers.LEFT_OUT, (0, 4)),
        GiveBytes(1, buffers.PHASE, (SIZE, SIZE + 4)),
        GiveMoments(1, 7, "../identity.key", 5),
        GiveMoments(1, 10**12, "stage-0-of-1.safetensors", 5),
        GiveMoments(1, 7, "stage-0-of-1.safetensors", 0),
        HELLO,
    ],
)
def test_what_no_trainer_asks_ends_it(ends: Ends, message: Any) -> None:
    ends.say(message)
    assert isinstance(ends.end(), WireError)
    assert not ends.checkpoints.exists()


def test_what_ranks_tell_of_a_hang_lies_with_that_of_the_head_and_is_theirs_alone(ends: Ends) -> None:
    ends.node.send(node.HangFile(collectives_name(1), b"{}"))
    ends.node.send(node.HangFile(collectives_name(0), b"of the head's own rank"))
    assert isinstance(ends.end(), WireError)
    live = live_folder(ends.checkpoints.parents[1])
    assert [path.name for path in live.iterdir()] == [collectives_name(1)]
    assert (live / collectives_name(1)).read_bytes() == b"{}"
    forget_told(ends.checkpoints.parents[1], range(1, 2))
    assert not list(live.iterdir())


@pytest.mark.parametrize("offset", [0, 2, SIZE])
def test_bytes_that_were_not_asked_for_end_it(ends: Ends, offset: int) -> None:
    ends.say(GiveBytes(1, buffers.PHASE, (0, 4)))
    wanted = ends.hear()
    ends.node.send(node.Fetched(wanted.number, offset, b"fives"))
    assert isinstance(ends.end(), WireError)
    assert os.pread(ends.files[buffers.PHASE], SIZE, 0) == bytes(SIZE)


def test_message_that_is_too_long_ends_it(ends: Ends) -> None:
    ends.raw.sendall(LENGTH.pack(NODE_MESSAGE_BYTES_MAX + 1000))
    error = ends.end()
    assert isinstance(error, WireError) and error.code == "too_large"


@pytest.mark.parametrize(
    ("reason", "is_well"),
    [("process 0: exit status 0, process 1: exit status 0", True), ("killed by SIGKILL", False)],
)
def test_end_of_the_trainers_is_told(ends: Ends, reason: str, is_well: bool) -> None:
    ends.node.send(node.PartEnded(reason))
    error = ends.end()
    assert isinstance(error, StageEnded) and error.is_well == is_well and str(error) == reason
