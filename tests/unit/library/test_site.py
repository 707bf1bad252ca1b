"""The library's end of the local socket: how long it waits for its daemon, and what a step may count."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from dilocoxd import Site, describe
from dilocoxd.cli.model.origin import Origin
from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import LOSSES_MIN
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.store.rundir import RunDir, create_run_dir
from dilocoxd.wire.local import buffers, trainer, worker
from dilocoxd.wire.local.frames import frame, take_message
from dilocoxd.wire.local.left_out import LeftOutOf

PATIENCE_S = 120.0
"""A call that takes longer would have waited for ever."""


def run_of(folder: Path, **inner: int) -> RunDir:
    describe(nn.Linear(2, 3), folder / "m")
    tables = Origin(module=folder / "m").applied(preset_tables("tiny"))
    tables["inner"] |= inner
    return create_run_dir(folder / "run", manifest_from_tables(tables, source="test"), SiteConfig())


@contextmanager
def listening(run_dir: RunDir) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(run_dir.path / "sock"))
        server.listen()
        yield server


def let_in(server: socket.socket) -> None:
    """What a daemon says to a loop that it lets train; then it listens until the loop has gone."""
    connection, _ = server.accept()
    with connection:
        names, size = (buffers.ANCHOR, buffers.PHASE), 4 * 9
        descriptors = [os.memfd_create(name) for name in names]
        for descriptor in descriptors:
            os.truncate(descriptor, size)
        socket.send_fds(connection, [frame(worker.Attach(names, (size, size)))], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(frame(trainer.StartTraining(PhaseId(1), RoundIndex(0), 1000, "")))
        while connection.recv(1 << 16):
            pass


def test_a_daemon_that_does_not_answer_is_given_up_after_wait_s(tmp_path: Path) -> None:
    run_dir, errors = run_of(tmp_path), []

    def come() -> None:
        try:
            Site(run_dir.path, nn.Linear(2, 3), wait_s=0.1)
        except ConfigError as error:
            errors.append(str(error))

    with listening(run_dir):  # and nobody accepts
        loop = threading.Thread(target=come, daemon=True)
        loop.start()
        loop.join(PATIENCE_S)
        assert not loop.is_alive()
    assert "within 0.1 s (its socket is there, but it does not answer)" in errors[0]


def test_retries_end_with_wait_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, pauses = run_of(tmp_path), []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(ConfigError, match=r"within 0\.01 s"):
        Site(run_dir.path, nn.Linear(2, 3), wait_s=0.01)
    assert max(pauses) <= 0.01


def test_a_step_may_count_as_many_tokens_as_the_run_allows_any_site(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path, batch_sequences=4, batch_sequences_max=8)
    with listening(run_dir) as server:
        daemon = threading.Thread(target=let_in, args=(server,), daemon=True)
        daemon.start()
        with Site(run_dir.path, nn.Linear(2, 3)) as site:
            most = 8 * 32  # sequences of the preset's length
            assert site.step(1.0, tokens=most)
            with pytest.raises(ConfigError, match=f"counts 1 to {most} .*batch_sequences_max"):
                site.step(1.0, tokens=most + 1)
        daemon.join(PATIENCE_S)


STATE = 3


def asks_for_losses(server: socket.socket, found: list[trainer.Evaluated]) -> None:
    """A daemon whose anchor is 0, 1, ..., 8; without contribution 1 of the entry before state 3 each value were half
    more. It asks for the loss of that state, and of another."""
    connection, _ = server.accept()
    values = {buffers.ANCHOR: torch.arange(9.0), buffers.PHASE: torch.zeros(9), buffers.LEFT_OUT: torch.full((9,), 0.5)}
    contents = {name: each.numpy().tobytes() for name, each in values.items()}
    contents[buffers.LEFT_OUT] += LeftOutOf(STATE, 1).encode()
    descriptors = [os.memfd_create(name) for name in contents]
    for descriptor, content in zip(descriptors, contents.values(), strict=True):
        os.write(descriptor, content)
    with connection:
        attach = worker.Attach(tuple(contents), tuple(map(len, contents.values())))
        socket.send_fds(connection, [frame(attach)], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(frame(trainer.StartTraining(PhaseId(1), RoundIndex(0), 1_000_000, "")))
        for state in (STATE, STATE + 1):
            connection.sendall(frame(trainer.Evaluate(RoundIndex(state))))
        received = bytearray()
        while len(found) < 2:
            data = connection.recv(1 << 16)
            if not data:
                return  # the loop has gone
            received += data
            while (message := take_message(received)) is not None:
                found.extend([message] if isinstance(message, trainer.Evaluated) else [])
        connection.sendall(frame(worker.Stop()))
        while connection.recv(1 << 16):
            pass  # until the loop has gone


def evaluated(tmp_path: Path, told: Callable[[float, float], float | Sequence[float]]) -> list[trainer.Evaluated]:
    """What the daemon hears of a loop whose `evaluate` makes `told` of the sums of weight and bias."""
    run_dir, model, found = run_of(tmp_path), nn.Linear(2, 3), list[trainer.Evaluated]()

    def evaluate() -> float | Sequence[float]:
        return told(model.weight.sum().item(), model.bias.sum().item())

    with listening(run_dir) as server:
        daemon = threading.Thread(target=asks_for_losses, args=(server, found), daemon=True)
        daemon.start()
        with Site(run_dir.path, model, evaluate=evaluate) as site:
            while site.step(1.0):
                pass
        daemon.join(PATIENCE_S)
    return found


def test_a_loop_that_tells_losses_of_batches_says_what_one_contribution_did_to_them(tmp_path: Path) -> None:
    first, second = evaluated(tmp_path, lambda weight, bias: [weight, bias])
    assert first.validation_loss == second.validation_loss == 18.0
    assert first.left_out == (trainer.LeftOut(1, -(6 + 3) / 4, pytest.approx(0.75)),)
    assert second.left_out == (), "of that state nothing was left out"
    assert [one.num_losses for one in (first, second)] == [2, 2]


@pytest.mark.parametrize(
    "told",
    [
        lambda weight, bias: (weight + bias) / 2,
        lambda weight, bias: [(weight + bias) / 2],
        lambda weight, bias: [18.0] * (2 if weight + bias < 37 else 3),
    ],
    ids=["a number", "one batch", "never the same batches"],
)
def test_a_loop_that_tells_no_losses_to_compare_says_nothing(
    tmp_path: Path, told: Callable[[float, float], float | Sequence[float]]
) -> None:
    found = evaluated(tmp_path, told)
    assert [(one.validation_loss, one.left_out) for one in found] == [(18.0, ()), (18.0, ())]
    assert all(one.num_losses < LOSSES_MIN for one in found), "the operator is told that nothing is measured"


def test_a_loop_that_tells_no_loss_at_all_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="returned no loss"):
        evaluated(tmp_path, lambda weight, bias: [])
