"""A profile records the steps that were asked for and no more, changes no bit, and never stops the training."""

import gzip
import json
import os
import resource
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.profiler import profile

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.ipc.client import DaemonConnection
from dilocoxd.ipc.profile_files import FOLDERS_KEPT
from dilocoxd.models import ModelConfig, param_specs
from dilocoxd.trainer import profiling
from dilocoxd.trainer.away.moving import VectorsFromHead
from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.loop import TrainingLoop
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig
from dilocoxd.trainer.profiling import StepRecorder
from dilocoxd.wire.layout import make_layout
from dilocoxd.wire.local import buffers, trainer as local, worker
from dilocoxd.wire.local.frames import frame, take_message

MODEL = ModelConfig("native", 64, 16, 2, 2, 2, 32, 8)
LAYOUT = make_layout(param_specs(MODEL), 4096)
PHASE_STEPS = 4
CPU = torch.device("cpu")


class Order:
    """Reads made-up text: a pure function of the position."""

    own_position = 0

    def begin(self, samples: Sequence[int], volume: int = 0) -> None:
        """Nothing is leased here."""

    def batch(self, position: int, num_sequences: int) -> tuple[Tensor, Tensor]:
        made = torch.Generator().manual_seed(position)
        ids_BT = torch.randint(0, MODEL.vocab_size, (num_sequences, MODEL.seq_len), generator=made)
        return ids_BT, ids_BT.roll(-1, 1)

    def validation_batches(self, num_sequences: int, batch_sequences: int) -> list[tuple[Tensor, Tensor]]:
        return []

    def validation_by_source(self, num_sequences: int, batch_sequences: int) -> dict[str, list[tuple[Tensor, Tensor]]]:
        return {}


class DaemonEnd:
    """Sends `first` with the order to train; at each boundary the next of `boundaries`; keeps what it hears. The anchor
    is `scale` times normal values."""

    def __init__(
        self, folder: Path, first: Sequence[Any], boundaries: Sequence[Sequence[Any]], scale: float = 1 / 8
    ) -> None:
        self.heard: list[Any] = []
        self._scale = scale
        self._orders = [[*first, local.StartTraining(PhaseId(0), RoundIndex(0), PHASE_STEPS, "")], *boundaries]
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = str(folder / "s")
        self._server.bind(self.path)
        self._server.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        with connection, self._server:
            self._attach(connection)
            self._send(connection, self._orders.pop(0))
            received = bytearray()
            while data := connection.recv(1 << 16):
                received += data
                while (message := take_message(received)) is not None:
                    self.heard.append(message)
                    if isinstance(message, local.BoundaryDue):
                        self._send(connection, self._orders.pop(0))

    def _attach(self, connection: socket.socket) -> None:
        anchor = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(1)) * self._scale
        names, size = (buffers.ANCHOR, buffers.PHASE), 4 * LAYOUT.numel
        descriptors = [os.memfd_create(name) for name in names]
        for descriptor in descriptors:
            os.write(descriptor, anchor.numpy().tobytes())
        socket.send_fds(connection, [frame(worker.Attach(names, (size, size)))], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    @staticmethod
    def _send(connection: socket.socket, messages: Sequence[Any]) -> None:
        connection.sendall(b"".join(map(frame, messages)))

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


def next_phase(number: int) -> local.CloseBoundary:
    return local.CloseBoundary("keep", RoundIndex(0), PhaseId(number), PHASE_STEPS)


def trained(
    folder: Path, first: Sequence[Any], *boundaries: Sequence[Any], scale: float = 1 / 8
) -> tuple[DaemonEnd, Tensor]:
    """What the daemon heard, and the parameters after the last of the phases."""
    folder.mkdir()
    daemon = DaemonEnd(folder, first, [*boundaries, [local.StopTraining()]], scale)
    link = DaemonConnection(daemon.path)
    link.receive()
    config = PipelineConfig(1, batch_sequences=2, num_microbatches=2)
    pipeline = Pipeline(MODEL, config, device=CPU)
    flat = FlatParameters(pipeline.parameters(), LAYOUT)
    training = InnerTraining(pipeline, OptimizerConfig(lr=0.01))
    TrainingLoop(link, CommandChannel(link, None), training, flat, Order(), {}).run()
    link.close()
    daemon.thread.join(120)
    return daemon, torch.cat([param.detach().reshape(-1) for _, param in pipeline.parameters()])


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def steps_in(path: Path) -> list[str]:
    """Names of the inner steps in a trace, which must have the work of torch too."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert "aten::mm" in names
    return sorted({name for name in names if name.startswith("inner step")})


@pytest.mark.usefixtures("one_rank")
def test_exactly_the_steps_asked_for_are_recorded_and_no_bit_changes(tmp_path: Path) -> None:
    ask = local.Profile(2, str(tmp_path / "profiles" / "now"))
    plain, expected = trained(tmp_path / "plain", [], [next_phase(1)])
    daemon, found = trained(tmp_path / "profiled", [ask, ask], [next_phase(1)])
    assert torch.equal(found, expected) and found.isfinite().all()
    losses = [[step.loss for step in each.of(local.StepDone)] for each in (plain, daemon)]
    assert losses[0] == losses[1] and len(losses[0]) == 2 * PHASE_STEPS
    folder = tmp_path / "profiles" / "now-step1"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert [path.name for path in folder.iterdir()] == ["rank0.json.gz"]
    assert steps_in(folder / "rank0.json.gz") == ["inner step 1", "inner step 2"]
    size = (folder / "rank0.json.gz").stat().st_size
    assert daemon.of(local.TraceBegun) == [local.TraceBegun(1)]
    assert daemon.of(local.TraceWritten) == [local.TraceWritten(0, 1, 2, size)], "the second request is not done"
    assert not plain.of(local.TraceWritten)


@pytest.mark.usefixtures("one_rank")
def test_a_later_profile_begins_where_it_is_asked_for_and_goes_over_a_boundary(tmp_path: Path) -> None:
    first, second = (local.Profile(steps, str(tmp_path / name)) for steps, name in ((1, "a"), (PHASE_STEPS + 1, "b")))
    daemon, _ = trained(tmp_path / "site", [first], [second, next_phase(1)], [next_phase(2)])
    assert steps_in(tmp_path / "a-step1" / "rank0.json.gz") == ["inner step 1"]
    assert steps_in(tmp_path / "b-step5" / "rank0.json.gz") == [f"inner step {number}" for number in range(5, 10)]
    assert [told.first_step for told in daemon.of(local.TraceBegun)] == [1, 5]
    assert len(daemon.of(local.StepDone)) == 3 * PHASE_STEPS


@pytest.mark.usefixtures("one_rank")
def test_a_profile_that_cannot_be_written_leaves_training_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ask = local.Profile(2, str(tmp_path / "file" / "now"))
    after = local.Profile(1, str(tmp_path / "again"))
    daemon, found = trained(tmp_path / "site", [ask], [after, next_phase(1)])
    assert torch.equal(found, trained(tmp_path / "plain", [], [next_phase(1)])[1])
    failed, written = daemon.of(local.TraceWritten)
    assert "Not a directory" in failed.problem and failed.size_bytes == 0
    assert not written.problem, "nothing of the failed one is left on"
    assert steps_in(tmp_path / "again-step5" / "rank0.json.gz") == ["inner step 5"]


@pytest.mark.usefixtures("one_rank")
def test_a_pause_ends_a_profile(tmp_path: Path) -> None:
    ask = local.Profile(2, str(tmp_path / "now"))
    daemon, _ = trained(tmp_path / "site", [ask, local.Pause(), local.Resume()])
    (told,) = daemon.of(local.TraceWritten)
    assert "paused" in told.problem and not daemon.of(local.TraceBegun)
    many = local.Profile(PHASE_STEPS + 5, str(tmp_path / "many"))
    daemon, _ = trained(tmp_path / "other", [many], [local.Pause(), local.Resume(), next_phase(1)])
    (told,) = daemon.of(local.TraceWritten)
    assert (told.steps, told.problem) == (PHASE_STEPS, "")
    assert len(steps_in(tmp_path / "many-step1" / "rank0.json.gz")) == PHASE_STEPS


@pytest.mark.parametrize("room", [1024, 16 << 10])
def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    told: list[Any] = []
    recorder = StepRecorder(3, CPU, told.append)
    recorder.ask(local.Profile(1, str(tmp_path / "full")))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with recorder.step(7):
            for _ in range(room // 1024):  # torch holds 8 kB back, and does not look whether the end was written
                torch.ones(4, 4).mm(torch.ones(4, 4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "disk full" in told[-1].problem and told[-1].stage_rank == 3
    assert not list(tmp_path.iterdir()) and not torch._C._autograd._profiler_enabled()


def test_a_failure_of_the_step_itself_is_not_hidden(tmp_path: Path) -> None:
    recorder = StepRecorder(0, CPU, lambda _message: None)
    recorder.ask(local.Profile(2, str(tmp_path / "now")))
    with pytest.raises(RuntimeError, match="out of memory"), recorder.step(1):
        raise RuntimeError("out of memory")
    recorder.finish("")


def test_a_profiler_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(profile):  # as on a GPU whose driver lets nobody count
        def __enter__(self) -> Any:
            super().__enter__()
            raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(profiling, "profile", Broken)
    told: list[Any] = []
    recorder = StepRecorder(0, CPU, told.append)
    recorder.ask(local.Profile(2, str(tmp_path / "now")))
    for number in (1, 2):
        with recorder.step(number):
            torch.ones(4, 4).mm(torch.ones(4, 4))
    assert told == [local.TraceWritten(0, 0, 0, 0, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")]
    assert not list(tmp_path.iterdir()) and not torch._C._autograd._profiler_enabled()


def test_a_node_keeps_as_many_profiles_as_the_head(tmp_path: Path) -> None:
    vectors = VectorsFromHead.__new__(VectorsFromHead)
    vectors._folder = tmp_path
    for number in range(7):
        made = Path(vectors.profiles(f"/run/of/the/head/20261123T10000{number}-step{9 - number}"))
        assert made.parent == tmp_path / "profiles"
        made.mkdir(parents=True)
    left = sorted(path.name for path in (tmp_path / "profiles").iterdir())
    assert len(left) == FOLDERS_KEPT and left[0] == "20261123T100002-step7"
