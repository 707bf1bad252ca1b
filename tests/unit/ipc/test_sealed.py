"""What head and nodes say to each other opens for nobody else, once, and in its order."""

import socket
import threading

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ipc.sealed import GREETING, LENGTH, SALT_BYTES, Seal, SealedSocket, greeting, length_of, new_salt, salt_of
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
