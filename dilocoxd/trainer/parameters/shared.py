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


class SharedVectors:
    """Of one rank, whose buffers are attached."""

    def __init__(self, link: DaemonConnection, flat: FlatParameters) -> None:
        self._anchor = flat.view(link.buffers[local_buffers.ANCHOR])
        self.phase_here = flat.view(link.buffers[local_buffers.PHASE])
        """What ranks of this machine have written of PHASE."""

    def anchor(self) -> Tensor:
        """The newest one, float32 [numel], right where this rank's parameters lie. May block."""
        return self._anchor

    @contextmanager
    def phase(self) -> Iterator[Tensor]:
        """PHASE, float32 [numel], to be changed where this rank's parameters lie: for all who look after this."""
        yield self.phase_here

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
