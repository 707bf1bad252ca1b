"""The end of a rank on a node: it asks the head for the stretches that it reads, and gives back what it has written.

Commands reach a rank through rank 0 and the ranks' own group, in the middle of its steps: so the rank itself, and
nobody before it, knows when it needs what. Source: docs/adr/0035-a-site-on-several-machines.md, decision 5.
"""

from __future__ import annotations

import itertools
import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from dilocoxd.errors import WorkerError
from dilocoxd.ipc.client import RUN_DIRECTORY_VARIABLE, DaemonConnection, DaemonGone
from dilocoxd.ipc.profile_files import make_room, profiles_folder
from dilocoxd.trainer.channel import EXIT_DAEMON_GONE
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.parameters.shared import FLOAT_BYTES, SharedVectors
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.moves import GiveBytes, GiveMoments, Moved, TakeBytes, TakeMoments


def moments_folder(rank: int) -> str:
    """Of the checkpoints of a rank that are on their way, below the stage's folder on the node."""
    return f"moments/{rank}"


class NodeLink(DaemonConnection):
    """The socket of a rank on a node. Only rank 0 of a site is told anything, and it is never here."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, queue.SimpleQueue[str]] = {}

    def listen(self) -> None:
        """Buffers are attached: from here on a thread takes what comes, and that is answers."""
        threading.Thread(target=self._answers, name="answers of the head", daemon=True).start()

    def ask(self, question: Callable[[int], Any]) -> None:
        """Wait until the head has done this. From any thread. Raises WorkerError with what it says, DaemonGone."""
        answer: queue.SimpleQueue[str] = queue.SimpleQueue()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = answer
        self.send(question(number))
        problem = answer.get()
        if problem:
            raise WorkerError(problem)

    def _answers(self) -> None:
        try:
            while True:
                message = self.receive()
                if isinstance(message, Moved):
                    with self._lock:
                        answer = self._waiting.pop(message.number, None)
                    if answer is not None:
                        answer.put(message.problem)
        except DaemonGone:
            os._exit(EXIT_DAEMON_GONE)  # others wait for answers that never come


class VectorsFromHead(SharedVectors):
    """What this rank holds of ANCHOR and PHASE comes and goes; buffers of the node are only where it lies meanwhile."""

    def __init__(self, link: NodeLink, flat: FlatParameters, meet: Callable[[], None]) -> None:
        """`meet` waits for the other ranks that share rows with us: one of them moves them."""
        super().__init__(link, flat)
        self._head = link
        self._meet = meet
        self._is_writer = flat.is_writer
        self._places = tuple(FLOAT_BYTES * each for each in itertools.chain.from_iterable(flat.stretches()))
        self._rank = int(os.environ["RANK"])
        self._folder = Path(os.environ[RUN_DIRECTORY_VARIABLE])
        link.listen()

    def anchor(self) -> Tensor:
        """See SharedVectors."""
        self._head.ask(lambda number: TakeBytes(number, local_buffers.ANCHOR, self._places))
        self._meet()
        return super().anchor()

    def left_out_at(self, round_index: int) -> int | None:
        """See SharedVectors. May block."""
        if self._marks[1]:
            self._head.ask(lambda number: TakeBytes(number, local_buffers.LEFT_OUT, self._marks))
        return super().left_out_at(round_index)

    def left_out(self) -> Callable[[int, int], Tensor]:
        """See SharedVectors."""
        self._head.ask(lambda number: TakeBytes(number, local_buffers.LEFT_OUT, self._places))
        self._meet()
        return super().left_out()

    def forget_left_out(self) -> None:
        """Give the memory back that it takes here. Ranks of one stage share it, so only when the last has read."""
        self._head.buffers[local_buffers.LEFT_OUT].madvise(mmap.MADV_REMOVE)

    @contextmanager
    def phase(self) -> Iterator[Tensor]:
        """See SharedVectors. Of replicas one writes: the others would take back what it has written here."""
        if not self._is_writer:
            yield self.phase_here
            return
        self._head.ask(lambda number: TakeBytes(number, local_buffers.PHASE, self._places))
        self._meet()
        yield self.phase_here
        self._meet()
        self._head.ask(lambda number: GiveBytes(number, local_buffers.PHASE, self._places))

    def checkpoints(self, directory: str) -> Path:
        """See SharedVectors."""
        return self._folder / moments_folder(self._rank)

    def fetch_moments(self, tensors: Iterable[str]) -> None:
        """See SharedVectors."""
        names = tuple(tensors)
        self._head.ask(lambda number: TakeMoments(number, names))

    def deliver(self, step: int, path: Path) -> None:
        """See SharedVectors."""
        size = path.stat().st_size
        self._head.ask(lambda number: GiveMoments(number, step, path.name, size))

    def profiles(self, folder: str) -> str:
        """See SharedVectors: profiles stay on the node."""
        make_room(self._folder)
        return str(profiles_folder(self._folder) / Path(folder).name)


def shared_vectors(link: DaemonConnection, flat: FlatParameters, meet: Callable[[], None]) -> SharedVectors:
    """Of a rank on the head, or on a node. `meet` waits for those that share rows with it."""
    return VectorsFromHead(link, flat, meet) if isinstance(link, NodeLink) else SharedVectors(link, flat)
