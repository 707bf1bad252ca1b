"""The trainer of a run whose model dilocoxd does not build: somebody's own loop, which comes to the local socket.

The daemon neither starts nor ends that process. It waits for one, speaks the trainers' protocol with it, and waits for
the next one when it has gone; a visit that ends badly costs no restart.
"""

import asyncio
import functools
from typing import Any

from dilocoxd.daemon.workers.local_server import Connection
from dilocoxd.daemon.workers.trainers import Trainer, TrainerLife
from dilocoxd.wire.local import worker as local_worker


class VisitingTrainer(Trainer):
    """One process of the same user at a time, of one rank."""

    is_kept = False

    def admit(self, hello: local_worker.WorkerHello, connection: Connection) -> Any:
        """Let it in unless another one is here; it is told apart from what we start by generation 0."""
        rank, life = super().admit(hello, connection), self._present
        if rank is not None and life is not None:
            self.pids = (connection.pid,)
            late = functools.partial(self._check_start, life)
            asyncio.get_running_loop().call_later(self._settings.silence_max_s, late)
        return rank

    def _check_start(self, life: TrainerLife) -> None:
        if not life.is_ready:
            life.end("it said hello, and then nothing")

    def _may_join(self, generation: TrainerLife, hello: local_worker.WorkerHello, connection: Connection) -> bool:
        return hello.generation == 0 and not generation.ranks

    async def run(self) -> None:
        """One visit after the other until `stop`."""
        try:
            while not self.is_over:
                reason = await self._one_generation()
                self._listener.trainer_lost(self.generation, reason)
                self.pids = ()
        finally:
            self.ended.set()

    async def _one_generation(self) -> str:
        """Why the visit ended."""
        self.generation += 1
        generation = TrainerLife(self.generation, 1, self._listener)
        self._present = generation
        self._listener.trainer_starting(self.generation)
        try:
            reason = await asyncio.shield(generation.ended)
        finally:
            self._present = None
            for rank in generation.ranks.values():
                rank.connection.end()
        if generation.has_stopped:
            self._stopping.set()
            return "it stopped as it was told"
        return generation.failure or reason
