"""ANCHOR and PHASE as a rank reads and writes them, and where its checkpoints lie: on the machine of its daemon.

A rank on a node of the site has the same under the same names, and moves it (trainer/away/moving.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dilocoxd.ipc.client import DaemonConnection
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.left_out import LeftOutOf

FLOAT_BYTES: Final = 4


class SharedVectors:
    """Of one rank, whose buffers are attached."""

    def __init__(self, link: DaemonConnection, flat: FlatParameters) -> None:
        self._anchor = flat.view(link.buffers[local_buffers.ANCHOR])
        flat.pin(self._anchor)
        self.phase_here = flat.view(link.buffers[local_buffers.PHASE])
        """What ranks of this machine have written of PHASE."""
        self._link = link
        self._marks = FLOAT_BYTES * self._anchor.numel(), len(link.buffers.get(local_buffers.LEFT_OUT, b""))
        """Bytes [first, stop) of LEFT_OUT that say what its values are of; stop is 0 where the run has no LEFT_OUT."""

    def anchor(self) -> Tensor:
        """The newest one, float32 [numel], right where this rank's parameters lie. May block."""
        return self._anchor

    @contextmanager
    def phase(self) -> Iterator[Tensor]:
        """PHASE, float32 [numel], to be changed where this rank's parameters lie: for all who look after this."""
        yield self.phase_here

    def left_out_at(self, round_index: int) -> int | None:
        """Place of the contribution without which state `round_index` can be made here; None: of none."""
        first, stop = self._marks
        if not stop:
            return None
        of = LeftOutOf.decode(os.pread(self._link.descriptors[local_buffers.LEFT_OUT], stop - first, first))
        return of.place if of is not None and of.round == round_index else None

    def left_out(self) -> Callable[[int, int], Tensor]:
        """What to add to values [start, stop) of the anchor, float32 [stop - start], while `left_out_at` says whose
        contribution that leaves out. May block."""
        return self._read_left_out

    def _read_left_out(self, start: int, stop: int) -> Tensor:
        # Through no mapping: a look at a page that nobody wrote makes it, and most of this buffer is not there.
        values, fd = torch.empty(stop - start), self._link.descriptors[local_buffers.LEFT_OUT]
        left, place = values.view(torch.uint8).numpy().data, FLOAT_BYTES * start
        while left:
            num_read = os.preadv(fd, [left], place)  # the kernel gives at most 2 GiB at once
            left, place = left[num_read:], place + num_read
        return values

    def forget_left_out(self) -> None:
        """All ranks have what they wanted of it."""

    def checkpoints(self, directory: str) -> Path:
        """Where this rank reads and writes checkpoints that belong into `directory`."""
        return Path(directory)

    def fetch_moments(self, tensors: Iterable[str]) -> None:
        """Have the newest complete set there, or what of it these tensors are in. May block."""

    def deliver(self, step: int, path: Path) -> None:
        """A file of the set `step` is there, and on disk. May block; raises WorkerError."""

    def profiles(self, folder: str) -> str:
        """Where this rank writes a profile that belongs into `folder`."""
        return folder
