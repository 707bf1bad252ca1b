"""Framing of local messages on a stream: 4 bytes little-endian length, then the message. Both ends use it."""

import struct
from typing import Any

from dilocoxd.errors import WireError
from dilocoxd.wire.local.registry import LOCAL_MESSAGE_BYTES_MAX, LOCAL_MESSAGES

_LENGTH = struct.Struct("<I")


def frame(message: Any) -> bytes:
    """Bytes of one message as they go over the socket."""
    body = LOCAL_MESSAGES.encode(message)
    return _LENGTH.pack(len(body)) + body


def take_message(received: bytearray) -> Any | None:
    """Cut the next known message off the front of `received`; None while it is not complete. Raises WireError."""
    while len(received) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(received)
        if length > LOCAL_MESSAGE_BYTES_MAX:
            raise WireError("too_large", f"local message of {length} bytes")
        end = _LENGTH.size + length
        if len(received) < end:
            return None
        body = bytes(received[_LENGTH.size : end])
        del received[:end]
        message = LOCAL_MESSAGES.decode(body)
        if message is not None:
            return message
    return None
