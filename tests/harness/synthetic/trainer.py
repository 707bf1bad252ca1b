"""A trainer process without a model, for states too large to train in a test: real socket, buffers and commands.

One rank. An inner step is a pause of `step_s`; at a boundary PHASE is overwritten with noise, as if that were
base - params. It never reads ANCHOR, so that its own memory stays small whatever the size of the state.
"""

import os
import select
import sys
import time

import numpy as np

from dilocoxd.ipc.client import Connection, DaemonGone
from dilocoxd.wire import local

STEP_S_VARIABLE = "SYNTHETIC_STEP_S"
TOKENS_PER_STEP = 8
NOISE_BYTES = 1 << 22
NOISE_SCALE = 1e-3


class SyntheticTrainer:
    """Does what local messages say; state as in dilocoxd/trainer/loop.py."""

    def __init__(self, link: Connection, step_s: float) -> None:
        self.link = link
        self.step_s = step_s
        self.shared_phase = link.buffers[local.PHASE]
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
            elif isinstance(message, local.StopTraining | local.Stop):
                self.link.send(local.TrainerStopped(self.phase, self.step))
                self.linger()
                return
            else:
                if not may_step and self.is_training and not self.is_paused:
                    self.idle_s += time.monotonic() - began
                self.obey(message)

    def linger(self) -> None:
        """The daemon ends the connection; leaving first would look like a lost rank."""
        select.select([self.link], [], [], 10.0)

    def inner_step(self) -> None:
        self.step += 1
        self.total += 1
        self.link.send(
            local.StepDone(self.phase, self.step, self.total, 1.0, TOKENS_PER_STEP, self.step_s, self.idle_s)
        )
        if self.step >= self.steps:
            self.is_due = True
            self.link.send(local.BoundaryDue(self.phase, self.step))

    def obey(self, message: object) -> None:
        match message:
            case local.StartTraining():
                self.phase, self.steps, self.is_training = message.phase, message.inner_steps, True
                self.link.send(local.AnchorTaken(message.round, "start", self.phase, 0))
            case local.Extend():
                self.steps, self.is_due = self.steps + message.inner_steps, False
            case local.CloseBoundary():
                self.close(message)
            case local.TakeAnchor():
                self.is_training = True
                self.link.send(local.AnchorTaken(message.round, message.how, self.phase, self.step))
            case local.Evaluate():
                self.link.send(local.Evaluated(message.round, 1.0, 0.0))
            case local.Pause():
                self.is_paused = True
            case local.Resume():
                self.is_paused = False

    def close(self, message: local.CloseBoundary) -> None:
        noise = (self.rng.standard_normal(NOISE_BYTES // 4, dtype=np.float32) * np.float32(NOISE_SCALE)).tobytes()
        for start in range(0, len(self.shared_phase), NOISE_BYTES):
            stop = min(start + NOISE_BYTES, len(self.shared_phase))
            self.shared_phase[start:stop] = noise[: stop - start]
        self.link.send(
            local.BoundaryClosed(
                self.phase, self.step, TOKENS_PER_STEP * self.step, 1.0, message.then == "replace", message.round
            )
        )
        self.phase, self.step, self.steps, self.is_due = message.next_phase, 0, message.inner_steps, False
        self.is_training = message.then != "wait"


def main() -> int:
    link = Connection()
    link.send(local.WorkerHello("trainer", os.getpid(), int(os.environ["DILOCOXD_GENERATION"]), 0, 1))
    while local.PHASE not in link.buffers:
        link.receive(1.0)
    link.send(local.TrainerReady())
    try:
        SyntheticTrainer(link, float(os.environ.get(STEP_S_VARIABLE, "0.1"))).run()
    except DaemonGone:
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
