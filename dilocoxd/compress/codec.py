"""Wire codecs: the contract that every byte format of one segment keeps, and the loops they share.

A codec turns the n fp32 values of one segment into exactly `payload_bytes(n)` bytes and back. Formats are little-endian
whatever the host. Work goes in chunks that fit the cache (measured: 4x faster than whole tensors).
Decoded values are what the shared state is made of, so decoders use only operations that IEEE 754 rounds one at a
time: the same payload gives the same bits for every thread count, vector width and CPU. Source: docs/internals.md,
protocol chapter on compression, ALGORITHMS section 5 (I10).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.errors import DilocoxdError, WireError

CHUNK = 1 << 19
"""Elements worked on at a time: smaller ones are bound by the cost of calls, larger ones by memory.

A multiple of every block length and of the 4096 of `wire.layout.CUT_MULTIPLE`."""
MAGNITUDE_MAX = 2.0**64
"""Largest |value| on the wire. Sums over 1,024 peers stay finite, so no peer can make a result unencodable."""
FOLD = 1 << 15
"""Elements squared at a time: float64 of this length stays in the cache."""

Payload = bytes | bytearray | memoryview | Tensor
"""Bytes of one segment: any contiguous buffer, or a uint8 tensor."""


class NotEncodableError(DilocoxdError):
    """Values that must not be offered: NaN, Inf or a magnitude above `MAGNITUDE_MAX`. The phase is not offered."""


class Codec(ABC):
    """One byte format. Stateless; every method is a pure function of its arguments."""

    name: str
    """Canonical spelling, as `registry.codec_from_name` takes it."""
    chunk: int = CHUNK
    """Elements worked on at a time: no part of the payload, but the norms of C9 are added up by chunks. Codecs with
    several temporaries per value take fewer at once, or their scratch exceeds a segment of a million."""

    @abstractmethod
    def payload_bytes(self, numel: int) -> int:
        """Exact length in bytes of the payload of `numel` values."""

    def chunks(self, numel: int) -> Iterator[tuple[int, int]]:
        """`(start, stop)` of the pieces in which `numel` values are encoded and decoded."""
        return chunks(numel, self.chunk)

    @abstractmethod
    def encode_chunk(self, values: Tensor, start: int, numel: int, out: Tensor) -> None:
        """Write what encodes `values` = one of `self.chunks(numel)`, from `start`, into the whole payload `out`."""

    @abstractmethod
    def decode_chunk(self, payload: Tensor, start: int, numel: int, out: Tensor) -> None:
        """Fill `out`, one of `self.chunks(numel)`, from a payload that `checked_payload` passed. Raises WireError."""

    def add_chunk_(self, payload: Tensor, start: int, numel: int, target: Tensor, factor: float) -> None:
        """target <- target + values * factor of one chunk, each product and each sum rounded: -1 takes values away.
        Raises WireError."""
        values = torch.empty_like(target)
        self.decode_chunk(payload, start, numel, values)
        target.add_(values if factor == 1.0 else values.mul_(factor))

    def square_sum_chunk(self, payload: Tensor, start: int, numel: int, count: int) -> float:
        """Sum of squares of the `count` values of one chunk of a payload that `checked_payload` passed, in float64: the
        same bits on every machine. Raises WireError."""
        values = torch.empty(count)
        self.decode_chunk(payload, start, numel, values)
        return square_sum(values)

    def encode(self, values: Tensor, out: bytearray | memoryview | Tensor) -> None:
        """Fill `out` (exactly `payload_bytes(n)` writable bytes) with the encoding of float32[n].

        Raises NotEncodableError for NaN, Inf or |x| > 2**64; `out` is then undefined.
        """
        numel = check_values(values)
        target = self.target_payload(out, numel)
        for start, stop in self.chunks(numel):
            self.encode_chunk(values[start:stop], start, numel, target)
        self.finish_payload(target, numel)

    def target_payload(self, out: bytearray | memoryview | Tensor, numel: int) -> Tensor:
        """`out` as a uint8 tensor of the right length, for `encode_chunk`."""
        target = as_bytes(out)
        if target.numel() != self.payload_bytes(numel):
            raise ValueError(f"{self.name}: buffer of {target.numel()} bytes for {self.payload_bytes(numel)}")
        return target

    def finish_payload(self, out: Tensor, numel: int) -> None:  # noqa: B027 - most formats need no last word
        """All chunks are written: bring what concerns the payload as a whole into `out`."""

    def decode(self, payload: Payload, out: Tensor) -> None:
        """Fill float32[n] `out` with the values in `payload`. Raises WireError (`bad_payload`) for hostile bytes."""
        numel = check_values(out)
        source = self.checked_payload(payload, numel)
        for start, stop in self.chunks(numel):
            self.decode_chunk(source, start, numel, out[start:stop])

    def checked_payload(self, payload: Payload, numel: int) -> Tensor:
        """`payload` as a uint8 tensor of the right length, for `decode_chunk`. Raises WireError."""
        source = as_bytes(payload)
        if source.numel() != self.payload_bytes(numel):
            raise bad_payload(
                f"{self.name}: {source.numel()} bytes for {numel} values, must be {self.payload_bytes(numel)}"
            )
        return source


def chunks(numel: int, size: int = CHUNK) -> Iterator[tuple[int, int]]:
    """`(start, stop)` of consecutive chunks of `size` that cover `numel` elements."""
    for start in range(0, numel, size):
        yield start, min(start + size, numel)


def square_sum(values: Tensor) -> float:
    """Sum of squares of float32[n] in float64: the same bits for every CPU, thread count and vector width.

    The square of an fp32 number is exact in float64, and every addition of `folded` is one IEEE operation.
    """
    total = 0.0
    if loops.found:
        work = torch.empty(FOLD // 2, dtype=torch.float64)
        for start, stop in chunks(values.numel(), FOLD):
            total += loops.found.folded_squares(values[start:stop], work)
        return total
    for start in range(0, values.numel(), FOLD):
        squares = values[start : start + FOLD].double()
        total += folded(squares.mul_(squares))
    return total


def folded(parts: Tensor) -> float:
    """Sum of float64[n]: the upper half is added to the lower one until one number is left. Overwrites `parts`."""
    count = parts.numel()
    while count > 1:
        half = count // 2
        parts[:half].add_(parts[count - half : count])
        count -= half
    return float(parts[0]) if count else 0.0


def bad_payload(detail: str) -> WireError:
    """The error for every payload whose bytes break the format."""
    return WireError("bad_payload", detail)


def as_bytes(buffer: Payload) -> Tensor:
    """`buffer` as a uint8 tensor without a copy (read-only memory is copied: torch wants writable memory)."""
    if sys.byteorder != "little":
        raise RuntimeError("this build writes host order; big-endian hosts are not supported")
    if isinstance(buffer, Tensor):
        if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
            raise ValueError("a payload tensor must be contiguous uint8[n]")
        return buffer
    view = memoryview(buffer)
    if view.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    if view.readonly:
        return torch.frombuffer(bytearray(view), dtype=torch.uint8)
    return torch.frombuffer(view, dtype=torch.uint8)


def store(values: Tensor, out: Tensor) -> None:
    """Copy `values` (any dtype) byte by byte into `out`; `out` may have any alignment."""
    out.copy_(values.reshape(-1).view(torch.uint8))


def load(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """A fresh, aligned tensor of `dtype` with the bytes of `payload`."""
    values = torch.empty(payload.numel() // dtype.itemsize, dtype=dtype)
    values.view(torch.uint8).copy_(payload)
    return values


def not_encodable() -> NotEncodableError:
    """The error for values that no codec takes."""
    return NotEncodableError("values hold NaN, Inf or a magnitude above 2**64")


def check_encodable(magnitudes: Tensor) -> None:
    """Raise NotEncodableError unless all `magnitudes` (absolute values, or maxima of them) are in range; NaN is not."""
    if not bool((magnitudes.amax() <= MAGNITUDE_MAX).item()):
        raise not_encodable()


def check_decoded(values: Tensor) -> None:
    """Raise WireError unless all of `values` are finite and in range."""
    if not bool((values.abs().amax() <= MAGNITUDE_MAX).item()):
        raise bad_payload("a decoded value is NaN, Inf or above 2**64 in magnitude")


def check_values(values: Tensor) -> int:
    """n of float32[n]. Raises ValueError for anything else."""
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous():
        raise ValueError("values must be contiguous float32[n]")
    return values.numel()
