"""Hands scalar values to TensorBoard and Weights & Biases, which nobody ever waits for.

Each sink is a thread behind a bounded queue. What does not fit is dropped and counted (alert `sink_dropping`); a sink
that fails says so once and then drops everything. Both packages are optional: extras `tensorboard` and `wandb`.
"""

import contextlib
import importlib
import importlib.util
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from dilocoxd.errors import ConfigError

QUEUE_MAX: Final = 2000
FLUSH_EVERY: Final = 100
CLOSE_S: Final = 2.0
OF_STEPS: Final = "train/"
"""How the names of figures of inner steps begin, but for losses."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: `step` counts inner steps for losses of inner steps and `train/...`, rounds for everything else."""

    name: str
    value: float
    step: int
    unix_s: float


class Writer(Protocol):
    """The package behind a sink; called in the sink's own thread only."""

    def write(self, scalar: Scalar) -> None:
        """Take one value; may block."""

    def flush(self) -> None:
        """Make what was taken visible; may block."""

    def close(self) -> None:
        """No more values; may block."""


class Sink:
    """A queue and a thread for one writer; `open_writer` runs in the thread too, because packages import slowly."""

    def __init__(self, name: str, open_writer: Callable[[], Writer], queue_max: int = QUEUE_MAX) -> None:
        self.name = name
        self.num_dropped = 0
        self.failure = ""
        self._open_writer = open_writer
        self._queue: queue.Queue[Scalar | None] = queue.Queue(queue_max)
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._thread.start()

    def offer(self, scalar: Scalar) -> None:
        """Take it or drop it; returns at once."""
        if self.failure:
            self.num_dropped += 1
            return
        try:
            self._queue.put_nowait(scalar)
        except queue.Full:
            self.num_dropped += 1

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Let the thread finish, but not for long: it dies with the process."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=wait_s)
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            self._write_all(self._open_writer())
        except (OSError, ValueError, RuntimeError, TypeError, ImportError) as error:
            self.failure = f"{type(error).__name__}: {error}"[:300]
        finally:
            self.failure = self.failure or "the sink has ended"

    def _write_all(self, writer: Writer) -> None:
        count = 0
        while (scalar := self._queue.get()) is not None:
            writer.write(scalar)
            count += 1
            if count % FLUSH_EVERY == 0 or self._queue.empty():
                writer.flush()
        writer.close()


class TensorBoardWriter:
    """Event files in a directory."""

    def __init__(self, directory: Path) -> None:
        event_files = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._event = importlib.import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer: Any = event_files.EventFileWriter(str(directory))

    def write(self, scalar: Scalar) -> None:
        """One event."""
        value = self._summary.Value(tag=scalar.name, simple_value=scalar.value)
        event = self._event(wall_time=scalar.unix_s, step=scalar.step, summary=self._summary(value=[value]))
        self._writer.add_event(event)

    def flush(self) -> None:
        """To the file."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbWriter:
    """One W&B run; where it goes and with which key is W&B's own environment (WANDB_MODE, WANDB_API_KEY, ...)."""

    def __init__(self, project: str, run_name: str, directory: Path) -> None:
        wandb = self._wandb = importlib.import_module("wandb")
        directory.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, console="off")
        self._run: Any = wandb.init(project=project, name=run_name, dir=str(directory), settings=settings)
        self._defined: set[str] = set()

    def write(self, scalar: Scalar) -> None:
        """One value; figures of inner steps and of rounds have axes of their own."""
        axis = "inner_step" if scalar.name == "loss/inner" or scalar.name.startswith(OF_STEPS) else "round"
        if scalar.name not in self._defined:
            self._defined.add(scalar.name)
            self._run.define_metric(scalar.name, step_metric=axis)
        self._run.log({scalar.name: scalar.value, axis: scalar.step})

    def flush(self) -> None:
        """W&B's own process sends."""

    def close(self) -> None:
        """End the run, and wait for W&B's own process: it still writes the file when `finish` returns."""
        self._run.finish()
        self._wandb.teardown()


def open_sinks(tensorboard: str, wandb_project: str, run_name: str, directory: Path) -> list[Sink]:
    """The sinks that are configured. Raises ConfigError when a package is missing."""
    found = []
    if tensorboard:
        needs("tensorboard", "sinks.tensorboard")
        target = directory / tensorboard
        found.append(Sink("tensorboard", lambda: TensorBoardWriter(target)))
    if wandb_project:
        needs("wandb", "sinks.wandb_project")
        found.append(Sink("wandb", lambda: WandbWriter(wandb_project, run_name, directory / "logs")))
    return found


def needs(package: str, field: str) -> None:
    """Raises ConfigError if the optional package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{field}: the package {package} is not installed; pip install 'dilocoxd[{package}]'")
