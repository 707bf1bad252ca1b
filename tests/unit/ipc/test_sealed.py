"""What head and nodes say to each other opens for nobody else, once, and in its order."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ipc import sealed
from dilocoxd.ipc.nodes.faults import mute_fault
from dilocoxd.ipc.sealed import (
    GREETING,
    LENGTH,
    SALT_BYTES,
    NodeMute,
    Seal,
    SealedSocket,
    greeting,
    length_of,
    new_salt,
    salt_of,
)
from dilocoxd.wire.local.node import NODE_MESSAGE_BYTES_MAX, HeadHello, PartEnded, WriteBuffer

KEY, SALTS = bytes(range(32)), bytes(range(64))
FIRST, SECOND = HeadHello("1"), PartEnded("two")


def ends(**changes: bytes) -> tuple[Seal, Seal]:
    """Of the head, and of a node that differs from it in `changes`."""
    told = {"key": KEY, "salts": SALTS} | changes
    return Seal(KEY, SALTS, is_head=True), Seal(told["key"], told["salts"], is_head=False)


def body(frame: bytes) -> bytes:
    assert length_of(frame[: LENGTH.size]) == len(frame) - LENGTH.size
    return frame[LENGTH.size :]


def test_what_one_end_says_the_other_opens_both_ways_in_order() -> None:
    head, node = ends()
    assert [node.open(body(head.frame(message))) for message in (FIRST, SECOND)] == [FIRST, SECOND]
    assert head.open(body(node.frame(SECOND))) == SECOND
    assert b"two" not in node.frame(SECOND)


@pytest.mark.parametrize("changes", [{"key": bytes(32)}, {"salts": bytes(64)}], ids=["another key", "another meeting"])
def test_nobody_else_opens_it(changes: dict[str, bytes]) -> None:
    head, node = ends(**changes)
    with pytest.raises(WireError, match="unauthentic"):
        node.open(body(head.frame(FIRST)))


def test_what_is_changed_doubled_left_out_or_sent_back_does_not_open() -> None:
    head, node = ends()
    first, second = body(head.frame(FIRST)), body(head.frame(SECOND))
    for wrong in (second, first[:-1], first[:-1] + bytes([first[-1] ^ 1]), b""):
        with pytest.raises(WireError, match="unauthentic"):
            node.open(wrong)
    with pytest.raises(WireError, match="unauthentic"):
        head.open(first)
    assert node.open(first) == FIRST, "what did not open changed nothing"
    with pytest.raises(WireError, match="unauthentic"):
        node.open(first)


def test_another_process_goes_on_with_a_connection() -> None:
    head, node = ends()
    assert node.open(body(head.frame(FIRST))) == FIRST
    next_head = Seal(KEY, SALTS, is_head=True, sent=1)
    assert node.open(body(next_head.frame(SECOND))) == SECOND


@pytest.mark.parametrize("length", [0, 15, NODE_MESSAGE_BYTES_MAX + 17, 2**32 - 1])
def test_lengths_that_no_message_has_are_refused(length: int) -> None:
    with pytest.raises(WireError, match="too_large"):
        length_of(LENGTH.pack(length))


def test_other_programs_are_told_apart() -> None:
    salt = new_salt()
    assert salt_of(greeting(salt)) == salt and len(salt) == SALT_BYTES and salt != new_salt()
    for wrong in (GREETING, b"GET / HTTP/1.1\r\n" + salt, greeting(salt)[:-1]):
        with pytest.raises(WireError, match="malformed"):
            salt_of(wrong)


def test_socket_carries_pieces_while_others_come() -> None:
    left, right = socket.socketpair()
    head, node = ends()
    pieces = [WriteBuffer("phase", number << 20, bytes([number]) * (1 << 20)) for number in range(4)]
    with left, right:
        sender = threading.Thread(target=lambda: [SealedSocket(left, head).send(piece) for piece in pieces])
        sender.start()
        link = SealedSocket(right, node)
        assert [link.receive() for _ in pieces] == pieces
        sender.join()
        left.close()
        with pytest.raises(EOFError):
            link.receive()


def test_who_sends_hears_why_a_connection_was_ended_here_as_who_receives_does() -> None:
    """A rank that writes when its node has been silent for too long said `Broken pipe`."""
    here, there = socket.socketpair()
    with here, there:
        sealed = SealedSocket(here, Seal(KEY, SALTS, is_head=True))
        sealed._end = "the node said nothing for 6 s"
        here.shutdown(socket.SHUT_RDWR)
        with pytest.raises(BrokenPipeError, match="the node said nothing for 6 s"):
            sealed.send(FIRST)
        with pytest.raises(EOFError, match="the node said nothing for 6 s"):
            sealed.receive()


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, looks: int = 20) -> Iterator[tuple[SealedSocket, socket.socket]]:
    """The head's end of a connection, and the node's; a message may take so many looks."""
    monkeypatch.setattr(sealed, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(sealed, "MESSAGE_S", 0.01 * looks)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as node:
        here, _ = server.accept()
        with here:
            link = SealedSocket(here, Seal(KEY, SALTS, is_head=True))
            link.watch()
            yield link, node


def test_node_that_sends_half_a_message_is_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    """It held up the start of all trainers of the site, and nobody knew which node it was."""
    with watched(monkeypatch) as (link, node):
        node.sendall(Seal(KEY, SALTS, is_head=False).frame(FIRST)[:7])
        with pytest.raises(NodeMute, match=r"it owed an answer, or the rest of one, for 0\.2 s") as ended:
            link.receive(within_s=1000.0)
        fault = mute_fault(ended.value)
        assert fault is not None and "end `dilocoxd node` there and start it again" in fault.detail
        with pytest.raises(NodeMute):
            link.send(SECOND)


def test_node_that_trickles_a_message_is_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as (link, node):
        frame, has_ended = Seal(KEY, SALTS, is_head=False).frame(PartEnded("x" * 60_000)), threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                for each in frame:
                    if has_ended.wait(0.005):
                        return
                    node.sendall(bytes([each]))

        thread = threading.Thread(target=trickle)
        thread.start()
        with pytest.raises(NodeMute):
            link.receive()
        has_ended.set()
        thread.join()


def test_node_that_does_not_answer_is_mute_and_one_that_was_asked_nothing_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with watched(monkeypatch, looks=3) as (link, node):
        there = Seal(KEY, SALTS, is_head=False)
        later = threading.Timer(0.5, lambda: node.sendall(there.frame(FIRST) + there.frame(SECOND)))
        later.start()
        assert link.receive() == FIRST, "it owes nothing before it begins"
        time.sleep(0.2)
        assert link.receive(within_s=0.05) == SECOND, "it was here before it was asked for"
        with pytest.raises(NodeMute, match=r"for 0\.05 s"):
            link.receive(within_s=0.05)


def test_silence_of_a_machine_is_not_counted_against_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP sends again what was lost after as long a pause as the cut lasted."""
    owed = sealed._Owed()
    owed.ask(3.0)
    assert [owed.look(0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert [owed.look(silent_s) for silent_s in (2.0, 3.0, 4.0, 5.0)] == [0.0] * 4
    assert [owed.look(0.0) for _ in range(5)] == [0.0] * 5, "as long again"
    assert owed.look(0.0) == 3.0
    owed.end()
    assert owed.look(0.0) == 0.0
    owed.ask(3.0)
    assert owed.look(0.0) == 0.0, "another message"
