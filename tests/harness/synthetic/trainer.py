"""A trainer process without a model, for states too large to train in a test: real socket, buffers and commands.

One rank. An inner step is a pause of `step_s`; at a boundary PHASE is overwritten with noise, as if that were
base - params. It never reads ANCHOR, so that its own memory stays small whatever the size of the state.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from dilocoxd.ipc.client import DaemonConnection, DaemonGone
from dilocoxd.wire.local import buffers as local_buffers, trainer as local_trainer, worker as local_worker

STEP_S_VARIABLE = "SYNTHETIC_STEP_S"
READ_LOG_VARIABLE = "SYNTHETIC_READ_LOG"
"""File that gets a line for each phase: what it was told to read."""
TOKENS_PER_STEP = 8
NOISE_BYTES = 1 << 22
NOISE_SCALE = 1e-3


class SyntheticTrainer:
    """Does what local messages say; state as in dilocoxd/trainer/loop.py."""

    def __init__(self, link: DaemonConnection, step_s: float) -> None:
        self.link = link
        self.step_s = step_s
        self.shared_phase = link.buffers[local_buffers.PHASE]
        self.rng = np.random.default_rng(os.getpid())
        self.phase = self.step = self.steps = self.total = 0
        self.is_training = self.is_due = self.is_paused = False
        self.idle_s = 0.0

    def run(self) -> None:
        """Until StopTraining. Raises DaemonGone."""
        while True:
            may_step = self.is_training and not self.is_due and not self.is_paused
            began = time.monotonic()
            message = self.link.receive(self.step_s if may_step else None)
            if message is None:
                self.inner_step()
            elif isinstance(message, local_trainer.StopTraining | local_worker.Stop):
                self.link.send(local_trainer.TrainerStopped(self.phase, self.step))
                return
            else:
                if not may_step and self.is_training and not self.is_paused:
                    self.idle_s += time.monotonic() - began
                self.obey(message)

    def inner_step(self) -> None:
        self.step += 1
        self.total += 1
        self.link.send(
            local_trainer.StepDone(self.phase, self.step, self.total, 1.0, TOKENS_PER_STEP, self.step_s, self.idle_s)
        )
        if self.step >= self.steps:
            self.is_due = True
            self.link.send(local_trainer.BoundaryDue(self.phase, self.step))

    def obey(self, message: object) -> None:
        match message:
            case local_trainer.StartTraining():
                self.phase, self.steps, self.is_training = message.phase, message.inner_steps, True
                note_reading(self.phase, message.samples)
                self.link.send(local_trainer.AnchorTaken(message.round, "start", self.phase, 0))
            case local_trainer.Extend():
                self.steps, self.is_due = self.steps + message.inner_steps, False
            case local_trainer.CloseBoundary():
                self.close(message)
            case local_trainer.TakeAnchor():
                self.is_training = True
                if message.how == "replace":
                    note_reading(self.phase, message.samples)
                self.link.send(local_trainer.AnchorTaken(message.round, message.how, self.phase, self.step))
            case local_trainer.Evaluate():
                self.link.send(local_trainer.Evaluated(message.round, 1.0, 0.0))
            case local_trainer.Pause():
                self.is_paused = True
            case local_trainer.Resume():
                self.is_paused = False

    def close(self, message: local_trainer.CloseBoundary) -> None:
        noise = (self.rng.standard_normal(NOISE_BYTES // 4, dtype=np.float32) * np.float32(NOISE_SCALE)).tobytes()
        for start in range(0, len(self.shared_phase), NOISE_BYTES):
            stop = min(start + NOISE_BYTES, len(self.shared_phase))
            self.shared_phase[start:stop] = noise[: stop - start]
        self.link.send(
            local_trainer.BoundaryClosed(
                self.phase, self.step, TOKENS_PER_STEP * self.step, 1.0, message.then == "replace", message.round
            )
        )
        self.phase, self.step, self.steps, self.is_due = message.next_phase, 0, message.inner_steps, False
        note_reading(self.phase, message.samples)
        self.is_training = message.then != "wait"


def note_reading(phase: int, samples: tuple[int, ...]) -> None:
    """Add a line to the file that the environment names; of two lines of a phase the later one holds."""
    if READ_LOG_VARIABLE in os.environ:
        with Path(os.environ[READ_LOG_VARIABLE]).open("a") as file:
            file.write(json.dumps({"phase": phase, "samples": samples}) + "\n")


def main() -> int:
    link = DaemonConnection()
    link.send(local_worker.WorkerHello("trainer", os.getpid(), int(os.environ["DILOCOXD_GENERATION"]), 0, 1))
    while local_buffers.PHASE not in link.buffers:
        link.receive(1.0)
    link.send(local_trainer.TrainerReady())
    try:
        SyntheticTrainer(link, float(os.environ.get(STEP_S_VARIABLE, "0.1"))).run()
    except DaemonGone:
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
