"""Seals what a head and its nodes say to each other: AES-256-GCM with keys that follow from the node key.

Both send a random salt first; of key and both salts follow two keys, one for each direction, so that nothing said in
another connection or direction can be said again. Each message is sealed under its number: what is changed, doubled,
left out or out of order does not open. There is no handshake beside that: who opens the first message has the key.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dilocoxd.errors import ConfigError, WireError, reason_of
from dilocoxd.ipc.client import (
    LINK_LOST_STATUS,
    NODE_GRACE_VARIABLE,
    NODE_KEY_VARIABLE,
    NODE_SALTS_VARIABLE,
    NODE_SOCKET_VARIABLE,
)
from dilocoxd.wire.local.node import NODE_MESSAGE_BYTES_MAX, NODE_MESSAGES

GREETING: Final = b"dilocoxd-node-1\n"
SALT_BYTES: Final = 32
FRONT_BYTES: Final = len(GREETING) + SALT_BYTES
KEY_BYTES: Final = 32
LENGTH: Final = struct.Struct("<I")
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_INFO: Final = b"dilocoxd node link 1"
FAILED_STATUS: Final = 1
SILENCE_S: Final = 5
"""Of the other machine's kernel, whatever is or is not on its way, until we end a connection ourselves, or bear it."""
STALL_S: Final = 20
"""A process that reads nothing for so long does not count as alive either, though its kernel answers. The kernel ends
the connection then; with this it no longer counts keepalive probes, and would see a silent machine no sooner."""
LOOK_INTERVAL_S: Final = 1.0
ANSWER_S: Final = 60
"""So long a node has for its first answer: it writes and syncs three small files before, maybe beside a snapshot."""
MESSAGE_S: Final = 20
"""So long a message takes that has begun: what stops in its middle, or comes byte by byte, holds up all behind it."""
UNANSWERED_MIN: Final = 2
"""Probes, or the same bytes sent again: a machine that nobody asked anything is not silent, and nor is one that was not
asked because we stood still ourselves."""
_RETRANSMITS, _PROBES, _LAST_DATA, _LAST_ACK = 2, 3, 52, 56
_TCP_INFO_BYTES = 60
"""Places in the kernel's struct tcp_info: two bytes, and milliseconds as u32."""


def read_node_key(path: Path) -> bytes:
    """The key that a head and its nodes share. Raises ConfigError if the file is none, or others could read it."""
    try:
        mode, text = path.stat().st_mode & 0o777, path.read_text("ascii").strip()
        key = bytes.fromhex(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"node key {path} cannot be read ({reason_of(error)}); copy cluster.key_file of the head to this machine"
        ) from error
    if len(key) != KEY_BYTES:
        raise ConfigError(f"node key {path} has {len(key)} bytes instead of {KEY_BYTES}; copy that of the head again")
    if mode & 0o077:
        raise ConfigError(f"node key {path} has mode {mode:04o}, others could read it; run: chmod 600 {path}")
    return key


def greeting(salt: bytes) -> bytes:
    """First bytes of each side."""
    return GREETING + salt


def salt_of(front: bytes) -> bytes:
    """The salt of the other side's first bytes. Raises WireError if it speaks something else."""
    if front[: len(GREETING)] != GREETING or len(front) != FRONT_BYTES:
        raise WireError("malformed", "no node link")
    return front[len(GREETING) :]


class Seal:
    """One end of one connection."""

    def __init__(self, key: bytes, salts: bytes, *, is_head: bool, sent: int = 0, received: int = 0) -> None:
        """`salts`: the head's and then the node's. `sent`, `received`: messages that another process has moved."""
        keys = HKDF(hashes.SHA256(), 2 * KEY_BYTES, salts, _INFO).derive(key)
        ours, theirs = (keys[:KEY_BYTES], keys[KEY_BYTES:]) if is_head else (keys[KEY_BYTES:], keys[:KEY_BYTES])
        self._ours, self._theirs = AESGCM(ours), AESGCM(theirs)
        self._sent, self._received = sent, received

    def frame(self, message: Any) -> bytes:
        """Bytes of the next message, with their length in front."""
        sealed = self._ours.encrypt(_nonce(self._sent), NODE_MESSAGES.encode(message), None)
        self._sent += 1
        return LENGTH.pack(len(sealed)) + sealed

    def open(self, sealed: bytes) -> Any:
        """The next message. Raises WireError; `unauthentic` when another key sealed it, or it is not the next one."""
        try:
            body = self._theirs.decrypt(_nonce(self._received), sealed, None)
        except InvalidTag as error:
            raise WireError("unauthentic", "a message of the node link does not open") from error
        self._received += 1
        return NODE_MESSAGES.decode(body)


def length_of(front: bytes) -> int:
    """Bytes of the sealed message behind these four. Raises WireError."""
    (length,) = LENGTH.unpack(front)
    if not _TAG_BYTES <= length <= NODE_MESSAGE_BYTES_MAX + _TAG_BYTES:
        raise WireError("too_large", f"node message of {length} bytes")
    return int(length)


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")


def new_salt() -> bytes:
    return os.urandom(SALT_BYTES)


def end_when_silent(sock: socket.socket) -> None:
    """Let the kernel ask whether the other machine is there (`is_silent`), and end what stalls: nobody else does."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_S * 1000)


def heard_s(sock: socket.socket) -> float:
    """Seconds since the other machine's kernel answered last, whether it was asked or not. Raises OSError."""
    return _heard_s(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES))


def silence_s(sock: socket.socket) -> float:
    """So many seconds the other machine has answered nothing; 0 while nobody asks it. Raises OSError."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return _heard_s(info) if max(info[_RETRANSMITS], info[_PROBES]) >= UNANSWERED_MIN else 0.0


def _heard_s(info: bytes) -> float:
    return min(int(struct.unpack_from("=I", info, place)[0]) for place in (_LAST_DATA, _LAST_ACK)) / 1000


def is_silent(sock: socket.socket) -> bool:
    """The other machine has answered nothing for SILENCE_S, and was asked. False for one that is not read from, as long
    as its kernel answers. Raises OSError."""
    return silence_s(sock) >= SILENCE_S


class SilenceLimit:
    """How long the other machine may be silent: `limit_s`, at least SILENCE_S. Whoever ends the connection looks."""

    def __init__(self, sock: socket.socket, limit_s: float = 0.0) -> None:
        self.limit_s = limit_s
        self.is_tried = False
        """It is silent for longer than SILENCE_S."""
        self._socket = sock

    def look(self) -> bool:
        """Whether it is over. Raises OSError."""
        silent_s = silence_s(self._socket)
        if self.is_tried != (silent_s >= SILENCE_S):
            self.is_tried = not self.is_tried
            # Else the kernel ends what it takes for a stall.
            stall_s = STALL_S + (self.limit_s if self.is_tried else 0)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_s * 1000))
        return silent_s >= max(self.limit_s, SILENCE_S)


class NodeMute(EOFError):
    """The node's machine answers, its process does not: it owes a message for too long."""


class _Owed:
    """A message that the other side owes, for how long. Looked at once in LOOK_INTERVAL_S, and counted by looks: time
    in which we stood still ourselves is not its own."""

    def __init__(self) -> None:
        self.limit_s = 0.0
        """0: it owes none."""
        self._has_begun = False
        self._number = self._seen = 0
        self._waited_s = self._pardon_s = 0.0

    def ask(self, limit_s: float) -> None:
        """It has so long from now on."""
        self._number += 1
        self.limit_s = limit_s

    def begin(self) -> None:
        """Some of it is here: MESSAGE_S for the rest, from the first time on."""
        if not self._has_begun:
            self._has_begun = True
            self.ask(MESSAGE_S)

    def end(self) -> None:
        """It is here."""
        self.limit_s, self._has_begun = 0.0, False

    def look(self, silent_s: float) -> float:
        """The limit that it has passed, else 0. `silent_s`: so long the machine has been
        silent, and TCP sends again only after as long again."""
        limit_s = self.limit_s
        if silent_s:
            self._pardon_s = silent_s
        elif self._pardon_s > 0:
            self._pardon_s -= LOOK_INTERVAL_S
        elif self._number == self._seen:
            self._waited_s += LOOK_INTERVAL_S
        if self._number != self._seen:
            self._seen, self._waited_s = self._number, 0.0
        return limit_s if self._waited_s >= limit_s else 0.0


class SealedSocket:
    """A connection whose ends are sealed, blocking. One thread may send while another receives."""

    def __init__(self, sock: socket.socket, seal: Seal) -> None:
        self._socket = sock
        self._seal = seal
        self._end = ""
        self._owed = _Owed()
        self._is_mute = False

    def watch(self, limit_s: float = 0.0) -> None:
        """End the connection when the other machine is silent for so long (SilenceLimit), or its process owes a message
        for too long: a thread looks now and then, as long as it lives."""
        patience = SilenceLimit(self._socket, limit_s)
        threading.Thread(target=self._watch, args=(patience,), name="silence of a node", daemon=True).start()

    def _watch(self, patience: SilenceLimit) -> None:
        with contextlib.suppress(OSError):  # it has ended otherwise
            while not patience.look():
                if late_s := self._owed.look(silence_s(self._socket)):
                    self._end, self._is_mute = f"it owed an answer, or the rest of one, for {late_s:g} s", True
                    break
                time.sleep(LOOK_INTERVAL_S)
            else:
                self._end = _silent_for(max(patience.limit_s, SILENCE_S))
            self._socket.shutdown(socket.SHUT_RDWR)

    def _why_ended(self) -> str:
        with contextlib.suppress(OSError):
            if not self._end and is_silent(self._socket):  # the daemon has ended it
                return _silent_for(silence_s(self._socket))
        return self._end or "the node closed the connection"

    def send(self, message: Any) -> None:
        """Raises OSError, which says why if it was ended here, NodeMute. Of several threads one at a time."""
        try:
            self._socket.sendall(self._seal.frame(message))
        except BrokenPipeError as error:  # who sends may notice an end before who receives does
            if self._is_mute:
                raise NodeMute(self._end) from error
            raise BrokenPipeError(error.errno, self._why_ended()) from error

    def receive(self, within_s: float = 0.0) -> Any:
        """The next message; `within_s`: so long it may take, 0 for as long as it likes until it begins. `watch` looks.

        Raises OSError, WireError; EOFError when the other side has closed, NodeMute.
        """
        if within_s:
            self._owed.ask(within_s)
        try:
            sealed = self._exactly(length_of(bytes(self._exactly(LENGTH.size))))
        finally:
            self._owed.end()
        return self._seal.open(bytes(sealed))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise NodeMute(self._end) if self._is_mute else EOFError(self._why_ended())
            self._owed.begin()
            view = view[count:]
        return data

    def fileno(self) -> int:
        """Of the connection."""
        return self._socket.fileno()


def connection_taken_over(environment: Mapping[str, str]) -> SealedSocket:
    """The connection of a node that the daemon let in and gave us (NODE_* of ipc/client.py): one message went each way.

    Raises ConfigError.
    """
    key = read_node_key(Path(environment[NODE_KEY_VARIABLE]))
    sock = socket.socket(fileno=int(environment[NODE_SOCKET_VARIABLE]))
    sock.setblocking(True)
    salts = bytes.fromhex(environment[NODE_SALTS_VARIABLE])
    sealed = SealedSocket(sock, Seal(key, salts, is_head=True, sent=1, received=1))
    sealed.watch(float(environment.get(NODE_GRACE_VARIABLE) or 0.0))
    return sealed


def _silent_for(seconds: float) -> str:
    return f"the node said nothing for {seconds:.0f} s"


def status_of_end(error: Exception) -> int:
    """Exit status of a process in the place of a worker on a node.

    Where the connection has ended nobody failed, and the daemon holds it against nobody.
    """
    return LINK_LOST_STATUS if isinstance(error, EOFError | OSError) else FAILED_STATUS
