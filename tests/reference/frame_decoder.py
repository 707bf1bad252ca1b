"""Frames out of a whole stream of bytes, in any cut: what vectors and fuzzing need.

The product reads frame by frame from a libp2p stream (swarm/streams/streams.py), with the same `decode_prelude` and
`finish_frame`.
"""

from collections.abc import Iterator

from dilocoxd.errors import WireError
from dilocoxd.wire.frames import PRELUDE_BYTES, Frame, Prelude, decode_prelude, finish_frame


class FrameDecoder:
    """Incremental decoder: bytes in any cut, frames out. Keeps at most one frame's cap plus the last chunk fed."""

    def __init__(self, *, is_sealed: bool = False) -> None:
        """`is_sealed`: the bytes are those of a data connection."""
        self._is_sealed = is_sealed
        self._buffer = bytearray()
        self._prelude: Prelude | None = None

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Complete frames, in order. After a WireError the stream is useless: close it."""
        self._buffer += data
        while True:
            if self._prelude is None:
                if len(self._buffer) < PRELUDE_BYTES:
                    return
                self._prelude = decode_prelude(bytes(self._buffer[:PRELUDE_BYTES]), is_sealed=self._is_sealed)
                del self._buffer[:PRELUDE_BYTES]
            if len(self._buffer) < self._prelude.length:
                return
            payload = bytes(self._buffer[: self._prelude.length])
            del self._buffer[: self._prelude.length]
            prelude, self._prelude = self._prelude, None
            yield finish_frame(prelude, payload)

    def finish(self) -> None:
        """The stream has ended. Raises WireError(truncated) if that was inside a frame."""
        if self._buffer or self._prelude is not None:
            raise WireError("truncated", f"stream ended inside a frame, {len(self._buffer)} bytes of it came")
