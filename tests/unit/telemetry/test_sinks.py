"""Sinks never block: a stuck or failing writer costs values, not time; what was taken arrives in the real packages."""

import threading
from pathlib import Path

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.telemetry.sinks import Scalar, Sink, TensorBoardWriter, WandbWriter, needs, open_sinks

SCALARS = [Scalar("loss/inner", 4.0 - index / 10, index, 1000.0 + index) for index in range(20)]


class Memory:
    """A writer whose first value waits for permission."""

    def __init__(self, permission: threading.Event, failure: Exception | None = None) -> None:
        self.permission = permission
        self.failure = failure
        self.written: list[Scalar] = []
        self.is_closed = False

    def write(self, scalar: Scalar) -> None:
        self.permission.wait(60)
        if self.failure is not None:
            raise self.failure
        self.written.append(scalar)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def test_stuck_writer_costs_values_not_time() -> None:
    permission = threading.Event()
    memory = Memory(permission)
    sink = Sink("test", lambda: memory, queue_max=5)
    for scalar in SCALARS:
        sink.offer(scalar)
    assert 14 <= sink.num_dropped <= 15
    sink.close(wait_s=0.01)
    permission.set()
    sink.close(wait_s=60.0)
    kept = len(SCALARS) - sink.num_dropped
    assert memory.written == SCALARS[:kept]


def test_failing_writer_says_so_and_drops() -> None:
    permission = threading.Event()
    permission.set()
    sink = Sink("test", lambda: Memory(permission, OSError("no space left")))
    sink.offer(SCALARS[0])
    sink.close(wait_s=60.0)
    assert sink.failure == "OSError: no space left"
    sink.offer(SCALARS[1])
    assert sink.num_dropped == 1


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = Sink("tensorboard", lambda: TensorBoardWriter(tmp_path / "board"))
    for scalar in SCALARS:
        sink.offer(scalar)
    sink.close(wait_s=60.0)
    events = EventAccumulator(str(tmp_path / "board")).Reload().Scalars("loss/inner")
    assert [(event.step, round(event.value, 4), event.wall_time) for event in events] == [
        (scalar.step, round(scalar.value, 4), scalar.unix_s) for scalar in SCALARS
    ]
    assert sink.num_dropped == 0


def test_wandb_takes_values_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    sink = Sink("wandb", lambda: WandbWriter("project", "site-a", tmp_path))
    for scalar in SCALARS:
        sink.offer(scalar)
    sink.close(wait_s=120.0)
    assert sink.failure == "the sink has ended"
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 1
    assert b"loss/inner" in files[0].read_bytes()


def test_missing_package_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sinks.x: the package no_such_package is not installed; pip install"):
        needs("no_such_package", "sinks.x")
    assert open_sinks("", "", "run", tmp_path) == []
