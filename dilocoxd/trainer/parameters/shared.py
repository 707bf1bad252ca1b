"""ANCHOR and PHASE as a rank reads and writes them, and where its checkpoints lie: on the machine of its daemon.

A rank on a node of the site has the same under the same names, and moves it (trainer/away/moving.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from dilocoxd.ipc.client import DaemonConnection
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.left_out import LEFT_OUT_BYTES, LeftOutOf


class SharedVectors:
    """Of one rank, whose buffers are attached."""

    def __init__(self, link: DaemonConnection, flat: FlatParameters) -> None:
        self._anchor = flat.view(link.buffers[local_buffers.ANCHOR])
        self.phase_here = flat.view(link.buffers[local_buffers.PHASE])
        """What ranks of this machine have written of PHASE."""
        self._left_out = link.buffers.get(local_buffers.LEFT_OUT)
        self.left_out = flat.view(self._left_out) if self._left_out is not None else None
        """To add to the anchor, float32 [numel]: while `left_out_at` says whose contribution that leaves out."""

    def anchor(self) -> Tensor:
        """The newest one, float32 [numel], right where this rank's parameters lie. May block."""
        return self._anchor

    @contextmanager
    def phase(self) -> Iterator[Tensor]:
        """PHASE, float32 [numel], to be changed where this rank's parameters lie: for all who look after this."""
        yield self.phase_here

    def left_out_at(self, round_index: int) -> int | None:
        """Place of the contribution without which state `round_index` can be made here; None: of none."""
        if self._left_out is None:
            return None
        of = LeftOutOf.decode(memoryview(self._left_out)[-LEFT_OUT_BYTES:])
        return of.place if of is not None and of.round == round_index else None

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
