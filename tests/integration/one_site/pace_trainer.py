"""A trainer process without a model, for tests of the daemon's side: real socket, real buffers, real commands.

One rank. An inner step takes STEP_S and adds 1/1024 to every parameter, so that u of a phase is -steps/1024 exactly.
Environment PACE_FAULT: `never_ready`, `hang_in_phase_1`, `garbage`, `refuse_config`.
"""

import os
import sys
import time

import numpy as np

from dilocoxd.ipc.client import DaemonConnection, DaemonGone
from dilocoxd.wire.local import buffers as local_buffers, trainer as local_trainer, worker as local_worker

STEP_S = 0.004
PER_STEP = np.float32(1.0 / 1024.0)


class PaceTrainer:
    """Does what LOCAL messages say; state as in dilocoxd/trainer/loop.py."""

    def __init__(self, link: DaemonConnection, fault: str) -> None:
        self.link = link
        self.fault = fault
        self.anchor = np.frombuffer(link.buffers[local_buffers.ANCHOR], dtype=np.float32)
        self.shared_phase = np.frombuffer(link.buffers[local_buffers.PHASE], dtype=np.float32)
        self.params = self.anchor.copy()
        self.base = self.params.copy()
        self.phase = self.step = self.steps = self.total = 0
        self.is_training = self.is_due = self.is_paused = False
        self.idle_s = 0.0
        self.wait_began = 0.0

    def run(self) -> None:
        while True:
            may_step = self.is_training and not self.is_due and not self.is_paused
            began = time.monotonic()
            message = self.link.receive(STEP_S if may_step else None)
            if not may_step and self.is_training:
                self.idle_s += time.monotonic() - began
            if message is None:
                self.inner_step()
            elif isinstance(message, local_trainer.StopTraining):
                self.link.send(local_trainer.TrainerStopped(self.phase, self.step))
                return
            else:
                self.obey(message)

    def inner_step(self) -> None:
        if self.fault == "hang_in_phase_1" and self.phase >= 1:
            time.sleep(3600)
        self.step += 1
        self.total += 1
        self.params += PER_STEP
        self.link.send(local_trainer.StepDone(self.phase, self.step, self.total, 1.0, 8, STEP_S, self.idle_s))
        if self.step >= self.steps:
            self.is_due = True
            self.link.send(local_trainer.BoundaryDue(self.phase, self.step))

    def obey(self, message: object) -> None:
        match message:
            case local_trainer.StartTraining():
                self.params[:] = self.anchor
                self.phase, self.steps, self.is_training = message.phase, message.inner_steps, True
                self.link.send(local_trainer.AnchorTaken(message.round, "start", self.phase, 0))
            case local_trainer.Extend():
                self.steps, self.is_due = self.steps + message.inner_steps, False
            case local_trainer.CloseBoundary():
                self.close(message)
            case local_trainer.TakeAnchor():
                self.params[:] = self.anchor + (self.params - self.base) if message.how == "merge" else self.anchor
                self.is_training = True
                self.link.send(local_trainer.AnchorTaken(message.round, message.how, self.phase, self.step))
            case local_trainer.Evaluate():
                self.link.send(local_trainer.Evaluated(message.round, float(self.anchor.mean()), 0.0))
            case local_trainer.Pause():
                self.is_paused = True
            case local_trainer.Resume():
                self.is_paused = False

    def close(self, message: local_trainer.CloseBoundary) -> None:
        self.shared_phase -= self.params
        self.base[:] = self.params
        if message.then == "replace":
            self.params[:] = self.anchor
        self.link.send(
            local_trainer.BoundaryClosed(
                self.phase, self.step, 8 * self.step, 1.0, message.then == "replace", message.round
            )
        )  # fmt: skip
        self.phase, self.step, self.steps, self.is_due = message.next_phase, 0, message.inner_steps, False
        self.is_training = message.then != "wait"


def main() -> int:
    fault = os.environ.get("PACE_FAULT", "")
    link = DaemonConnection()
    link.send(local_worker.WorkerHello("trainer", os.getpid(), int(os.environ["DILOCOXD_GENERATION"]), 0, 1))
    if fault == "refuse_config":
        link.send(local_worker.WorkerFailed(0, "config", "model.num_layers = 1 cannot be cut"))
        return 78
    while local_buffers.PHASE not in link.buffers:
        link.receive()
    if fault == "never_ready":
        time.sleep(3600)
    if fault == "garbage":
        os.write(link.fileno(), b"\xff" * 64)
    link.send(local_trainer.TrainerReady())
    try:
        PaceTrainer(link, fault).run()
    except DaemonGone:
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
