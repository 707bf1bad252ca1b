"""Moves float32 values between a device and the memory that a site's processes share, slice by slice.

On CPUs these are copies. With a GPU they run on a stream of their own: each slice goes through one of two pinned pieces
of memory, so that the device moves one while the host writes or reads the other; what is pinned in the shared memory
itself goes straight to the device. Whoever calls may change the memory of the host, and use that of the device, as soon
as a call has returned. What asks torch for CUDA is `CudaEngine` alone. Source: docs/cluster.md, what it computes.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import torch
from torch import Tensor

PIECE: Final = 1 << 22
"""Values in a slice: 16 MiB, over which a copy runs at its full speed."""
_SLOTS: Final = 2
_FLOAT_BYTES: Final = 4
Pairs = Iterable[tuple[Tensor, Tensor]]
"""(on the host, on the device), of one shape each."""


class CopyEngine(Protocol):
    """What a device does beside its work, in the order in which it is told to."""

    def staging(self, numel: int) -> Tensor:
        """Memory of the host, float32 [numel], that the device can reach."""

    def pin(self, address: int, size: int) -> bool:
        """Let the device reach these bytes of the host, whole pages; whether it can."""

    def begin(self) -> None:
        """Copies from here on come after the work that the device was given before."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Returns at once."""

    def mark(self) -> Any:
        """A place behind the copies so far."""

    def wait(self, mark: Any) -> None:
        """Until they are done."""


class PlainCopies:
    """On CPUs, and wherever values have other types."""

    def pin(self, vector: Tensor, spans: Iterable[tuple[int, int]]) -> None:
        """Nothing to do."""

    def upload(self, pairs: Pairs) -> None:
        """What is on the device <- what is on the host."""
        for host, device in pairs:
            device.copy_(host)

    def download(self, pairs: Pairs, take: Callable[[Tensor, Tensor], object]) -> None:
        """Give `take` what is on the host, to be changed, and the values that are on the device."""
        for host, device in pairs:
            take(host, device.to("cpu", torch.float32))


PLAIN: Final = PlainCopies()


class StreamedCopies(PlainCopies):
    """With a device that copies while the host does something else."""

    def __init__(self, engine: CopyEngine, piece: int = PIECE) -> None:
        self._engine = engine
        self._piece = piece
        self._slots = [_Slot(engine, piece) for _ in range(_SLOTS)]
        self._turn = 0
        self._pinned: list[tuple[int, int]] = []
        """Addresses [start, stop)."""

    def pin(self, vector: Tensor, spans: Iterable[tuple[int, int]]) -> None:
        """Values [start, stop) of `vector` will be uploaded again and again. Where they cannot be pinned they go
        through other memory that is."""
        base = vector.data_ptr()
        for start, stop in whole_pages([(base + _FLOAT_BYTES * a, base + _FLOAT_BYTES * b) for a, b in spans]):
            if self._engine.pin(start, stop - start):
                self._pinned.append((start, stop))

    def upload(self, pairs: Pairs) -> None:
        """See PlainCopies."""
        engine = self._engine
        engine.begin()
        for host, device in self._slices(pairs):
            if self._is_pinned(host):
                engine.copy(device, host)
                continue
            slot = self._next_slot()
            staged = slot.values(host)
            staged.copy_(host)
            engine.copy(device, staged)
            slot.used()
        engine.wait(engine.mark())

    def download(self, pairs: Pairs, take: Callable[[Tensor, Tensor], object]) -> None:
        """See PlainCopies; `take` gets slices of both, and may keep neither."""
        self._engine.begin()
        for host, device in self._slices(pairs):
            slot = self._next_slot()
            staged = slot.values(host)
            self._engine.copy(staged, device)
            slot.used(partial(take, host, staged))
        for _ in self._slots:
            self._next_slot()

    def _slices(self, pairs: Pairs) -> Iterator[tuple[Tensor, Tensor]]:
        for whole in pairs:
            are_plain = all(each.is_contiguous() for each in whole)
            host, device = (each.view(-1) if are_plain else each for each in whole)
            for rows in slices_of(len(host), host[0].numel(), self._piece):
                yield host[rows], device[rows]

    def _next_slot(self) -> _Slot:
        """The one that was used first, when the device is done with it and what came in it was taken."""
        self._turn = (self._turn + 1) % _SLOTS
        slot = self._slots[self._turn]
        slot.finish()
        return slot

    def _is_pinned(self, host: Tensor) -> bool:
        first = host.data_ptr()
        stop = first + _FLOAT_BYTES * host.numel()
        return host.is_contiguous() and any(start <= first and stop <= end for start, end in self._pinned)


def _nothing() -> None:
    """For memory that nobody reads afterwards."""


class _Slot:
    """Memory that the device can reach, and what is still to be done with what it holds."""

    def __init__(self, engine: CopyEngine, numel: int) -> None:
        self._engine = engine
        self._numel = numel
        self._memory: Tensor | None = None
        self._mark: Any = None
        self._then: Callable[[], object] = _nothing

    def values(self, like: Tensor) -> Tensor:
        """In the shape of `like`."""
        if self._memory is None or self._memory.numel() < like.numel():
            self._memory = self._engine.staging(max(like.numel(), self._numel))
        return self._memory[: like.numel()].view(like.shape)

    def used(self, then: Callable[[], object] = _nothing) -> None:
        """The device was told to copy; `then` is to be done behind that."""
        self._mark, self._then = self._engine.mark(), then

    def finish(self) -> None:
        """Nobody needs what it holds after this."""
        if self._mark is not None:
            self._engine.wait(self._mark)
            self._then()
            self._mark, self._then = None, _nothing


class CudaEngine:
    """A GPU's copy engines, on a stream beside that of its work. Was never run: nobody here has a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda: Any = torch.cuda
        self._stream = self._cuda.Stream(device)

    def staging(self, numel: int) -> Tensor:
        """See CopyEngine."""
        return torch.empty(numel, dtype=torch.float32, pin_memory=True)

    def pin(self, address: int, size: int) -> bool:
        """See CopyEngine. RLIMIT_MEMLOCK or a container may forbid it."""
        if int(self._cuda.cudart().cudaHostRegister(address, size, 0)) == 0:
            return True
        # The error also waits for the next launch of a kernel, and would be told there: this one takes it away.
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device=self._device)
        return False

    def begin(self) -> None:
        """See CopyEngine."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, target: Tensor, source: Tensor) -> None:
        """See CopyEngine."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Any:
        """See CopyEngine."""
        return self._stream.record_event()

    def wait(self, mark: Any) -> None:
        """See CopyEngine."""
        mark.synchronize()


def copies_for(parts: Iterable[Tensor]) -> PlainCopies:
    """How to move these: streamed, where all of them are float32 on one GPU."""
    kinds = {(part.device, part.dtype) for part in parts}
    (device, dtype), *others = kinds or {(torch.device("cpu"), torch.float32)}
    is_streamed = device.type == "cuda" and dtype == torch.float32 and not others
    return StreamedCopies(CudaEngine(device)) if is_streamed else PlainCopies()


def slices_of(num_rows: int, width: int, piece: int) -> list[slice]:
    """Rows of `width` values, so many at a time that there are at most `piece` values, at least one row.

    >>> slices_of(5, 4, 8), slices_of(2, 9, 8)
    ([slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)], [slice(0, 1, None), slice(1, 2, None)])
    """
    step = max(1, piece // max(1, width))
    return [slice(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]


def whole_pages(spans: Iterable[tuple[int, int]], page: int = mmap.PAGESIZE) -> list[tuple[int, int]]:
    """Stretches of whole pages that hold these [start, stop), none in two of them: memory is pinned once.

    >>> whole_pages([(10, 90), (100, 250), (480, 500)], page=100)
    [(0, 300), (400, 500)]
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        first, end = start - start % page, stop + -stop % page
        if found and first <= found[-1][1]:
            first, end = found[-1][0], max(end, found[-1][1])
            found.pop()
        found.append((first, end))
    return found
