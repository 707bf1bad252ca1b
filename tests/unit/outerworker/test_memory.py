"""What the shared state remembers beside parameters: it survives any crash, snapshots and late joining, bit for bit."""

from __future__ import annotations

import json
import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.errors import WorkerError
from dilocoxd.outer.schedule import ScheduleState
from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.requests import Worker
from dilocoxd.outerworker.schedule_memory import Header, decode_header
from dilocoxd.wire.local import buffers as local_buffers, outer_worker as local
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    CopyBase,
    LoadState,
    OpenState,
    Settle,
    SnapshotSaved,
    WriteSnapshot,
)
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form

ADAPTIVE = {
    "strategy": {"transform": "lowrank", "lowrank_r": 8, "codec": "int4"},
    "schedule": {"kind": "adaptive", "window": 2, "energy_left": 0.5},
}
ROUNDS = 4


class PowerCut(Exception):
    """The process ends here."""


class CuttingWindow:
    """JOURNAL that ends the process at one write, before or after it has happened."""

    def __init__(self, under: mmap.mmap) -> None:
        self._under = under
        self.left = -1
        self.is_after = False

    def __len__(self) -> int:
        return len(self._under)

    def __getitem__(self, key: slice) -> bytes:
        return self._under[key]

    def __setitem__(self, key: slice, value: bytes) -> None:
        self.left -= 1
        if self.left == 0 and not self.is_after:
            raise PowerCut
        self._under[key] = value
        if self.left == 0:
            raise PowerCut


class FragileWorker(InnerWorker):
    """Comes back on the same buffers after a power cut."""

    def __init__(self) -> None:
        super().__init__(make_plan(tiny_manifest(**ADAPTIVE)))
        self.journal = CuttingWindow(self._maps[local_buffers.JOURNAL])
        self.revive()

    def saved(self) -> dict[str, bytes]:
        """All that outlives the process."""
        return {name: bytes(held) for name, held in self._maps.items()}

    def take(self, saved: dict[str, bytes]) -> None:
        """Stand where all that outlives the process was `saved`, as another process."""
        for name, data in saved.items():
            self._maps[name][:] = data
        self.journal.left = -1
        self.revive()

    def revive(self) -> None:
        plan = make_plan(tiny_manifest(**ADAPTIVE))
        maps: dict[str, Any] = {**self._maps, local_buffers.JOURNAL: self.journal}
        self._worker = Worker(plan, MappedBuffers(plan, maps, {}), Reporter(_Sent(self._sent)))


class _Sent:
    def __init__(self, sent: list[Any]) -> None:
        self._sent = sent

    def send(self, message: Any) -> None:
        self._sent.append(message)


def update(index: int, numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(index))


def one_round(site: Site, index: int) -> local.StateReady:
    assert site.worker.described is not None
    form(site, update(index, site.worker.described.numel), index)
    owned = exchange([site], (0,), {})
    (ready,) = commit([site], index, index, owned)
    site.worker.do(CopyBase)
    return ready


def history(worker: InnerWorker, first: int, last: int) -> list[local.StateReady]:
    return [one_round(Site("Qma", worker), index) for index in range(first, last)]


def calm_worker() -> InnerWorker:
    worker = InnerWorker(make_plan(tiny_manifest(**ADAPTIVE)))
    worker.do(LoadState, "")
    return worker


def essence(ready: local.StateReady) -> tuple[object, ...]:
    return ready.round, ready.state_digest, ready.lowrank_r, ready.inner_steps, ready.next_lowrank_r, ready.shared_steps


@pytest.mark.parametrize("is_after", [False, True])
def test_a_cut_at_any_journal_write_of_an_update_changes_nothing(is_after: bool) -> None:
    expected = [essence(ready) for ready in history(calm_worker(), 0, ROUNDS)]
    assert expected[-1][2] != 8, "the low rank has moved, so its payloads have other lengths"
    worker = FragileWorker()
    worker.do(LoadState, "")
    site = Site("Qma", worker)
    history(worker, 0, ROUNDS - 1)
    assert worker.described is not None
    form(site, update(ROUNDS - 1, worker.described.numel), ROUNDS - 1)
    owned = exchange([site], (0,), {})
    worker.do(Settle, ROUNDS - 1, ROUNDS - 1, True, owned["Qma"])
    saved, cuts = worker.saved(), 0
    for number in range(1, 200):
        if cuts:  # the first cut is that of the process which has made all rounds
            worker.take(saved)
        lowrank_r = worker.do(OpenState).lowrank_r
        worker.journal.left, worker.journal.is_after = number, is_after
        try:
            ready = worker.do(ApplyResult, ROUNDS - 1, "", 0, lowrank_r)
        except PowerCut:
            cuts += 1
            worker.revive()
            ready = worker.do(OpenState)
            if ready.round == ROUNDS - 1:
                ready = worker.do(ApplyResult, ROUNDS - 1, "", 0, lowrank_r)
            assert essence(ready) == expected[-1], number
        else:
            assert essence(ready) == expected[-1]
            break
    assert cuts > 5


def test_who_starts_from_a_snapshot_offers_and_decides_the_same(tmp_path: Path) -> None:
    old, new = calm_worker(), calm_worker()
    history(old, 0, ROUNDS)
    assert isinstance(snapshot(old, tmp_path / "4"), SnapshotSaved)
    assert essence(new.do(LoadState, str(tmp_path / "4"))) == essence(old.do(OpenState))
    new.do(CopyBase)
    new.write(local_buffers.FEEDBACK, old.read(local_buffers.FEEDBACK))
    new.write(local_buffers.OWNER_FEEDBACK, old.read(local_buffers.OWNER_FEEDBACK))
    later = [[essence(ready) for ready in history(worker, ROUNDS, ROUNDS + 3)] for worker in (old, new)]
    assert later[0] == later[1]


def snapshot(worker: InnerWorker, directory: Path) -> Any:
    """The answer comes from the snapshot's thread."""
    worker._worker.handle(WriteSnapshot(worker.number(), str(directory)))
    worker._worker.finish()
    return worker._sent.pop()


def test_damaged_memory_of_a_snapshot_is_refused_as_another_state(tmp_path: Path) -> None:
    old = calm_worker()
    history(old, 0, 2)
    memory = bytearray(old.read(local_buffers.MEMORY))
    memory[-200] ^= 1
    old.write(local_buffers.MEMORY, bytes(memory))
    snapshot(old, tmp_path / "2")
    assert calm_worker().ask(LoadState, str(tmp_path / "2")).kind == "corrupt_snapshot"


def test_entry_with_a_low_rank_that_the_state_does_not_say_is_refused() -> None:
    worker = calm_worker()
    assert worker.ask(ApplyResult, 0, "", 0, 7).kind == "bad_request"
    assert worker.do(OpenState).round == 0


def test_header_that_is_none_is_an_error_with_a_remedy() -> None:
    with pytest.raises(WorkerError, match="start from a snapshot"):
        decode_header(b"\0" * 1024)


@pytest.mark.parametrize("value", ["9", True, -1, 1 << 63])
@pytest.mark.parametrize(
    "name", ["lowrank_r", "inner_steps", "next_lowrank_r", "next_inner_steps", "shared_steps", "measured"]
)
def test_header_with_something_else_than_whole_numbers_is_refused(name: str, value: object) -> None:
    """Of a snapshot with the digest that a liar's entry was voted for: the daemon could not even be told of it."""
    good = Header(ScheduleState(4, 10, 4, 10, 70, (64,)), 4)
    assert decode_header(good.encode()) == good
    table = json.loads(good.encode())
    table["schedule"][name] = [value] if name == "measured" else value
    with pytest.raises(WorkerError, match="start from a snapshot"):
        decode_header(json.dumps(table).encode())


@pytest.mark.parametrize("name", ["lowrank_r", "next_lowrank_r"])
def test_state_with_a_low_rank_that_the_run_has_not_is_never_loaded(name: str) -> None:
    """Once it is, each start of the worker would end where the transform looks for it."""
    worker = calm_worker()
    history(worker, 0, 1)
    shared, memory = worker._worker._state, worker._worker._workspace.memory
    memory.write_header(1, Header(replace(memory.header(1).schedule, **{name: 999}), memory.header(1).lowrank_r))
    shared.begin_replace()
    with pytest.raises(WorkerError, match="low rank 999"):
        shared.finish_replace(1)
    assert not worker._worker._workspace.state.is_loaded
