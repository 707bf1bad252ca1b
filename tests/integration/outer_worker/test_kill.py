"""SIGKILL of the outer worker at every journal write, and at random moments: the buffers end with the same bits."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.config.manifest import Manifest
from dilocoxd.outerworker.journal import CRASH_VARIABLE
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    CopyBase,
    FormContribution,
    LoadState,
    OpenState,
    OwnedSegment,
    Reduce,
    Settle,
    Share,
)
from tests.harness.outer_worker.daemon_end import OuterDaemon, WorkerDied, tiny_manifest
from tests.harness.outer_worker.forks import Forks
from tests.harness.outer_worker.swarm import foreign_payload
from tests.reference.state_digest import anchor_hash

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = 3
SHARES = (Share(0, 300), Share(-1, 500), Share(2, 200))
KILLS = 25
JOURNAL_WRITES_MIN = 50
"""Of one undisturbed scenario: fewer would mean that something is not journalled."""
FINAL_BUFFERS = (local_buffers.ANCHOR, local_buffers.MOMENTUM, local_buffers.FEEDBACK, local_buffers.OWNER_FEEDBACK)


class Persistent:
    """A daemon that starts a dead worker again and repeats what was not answered (docs/internals.md section 4)."""

    def __init__(self, worker: OuterDaemon, crash_points: Iterator[str]) -> None:
        self.worker = worker
        self.deaths = 0
        self._crash_points = crash_points
        self._start()

    def _start(self) -> None:
        point = next(self._crash_points, "")
        self.worker.start(**({CRASH_VARIABLE: point} if point else {}))
        self.ready = self.worker.do(OpenState)

    def _restart(self) -> None:
        while True:
            self.deaths += 1
            self.worker.kill()
            try:
                self._start()
            except WorkerDied:
                continue
            return

    def do(self, kind: type, *arguments: Any) -> Any:
        while True:
            try:
                return self.worker.do(kind, *arguments)
            except WorkerDied:
                self._restart()
            if kind is ApplyResult and self.ready.round == arguments[0] + 1:
                return self.ready


def scenario(persistent: Persistent, plan: OuterPlan, directory: Path) -> dict[str, str]:
    """Genesis; a round with us; a round without us whose payload is in a file; a round in which the other half of the
    segments is ours, so that what we owed as owner moves. Digests of everything."""
    worker, seen = persistent.worker, {}
    seen["genesis"] = persistent.do(LoadState, "").state_digest.hex()
    for index in range(ROUNDS):
        persistent.do(CopyBase)
        base = worker.floats(local_buffers.PHASE)
        noise = torch.randn(base.numel(), generator=torch.Generator().manual_seed(index))
        worker.write_floats(local_buffers.PHASE, 0.3 * base + noise)
        formed = persistent.do(FormContribution, index, 0)
        seen[f"formed{index}"] = str((formed.segment_hashes, formed.norm, formed.residual_norm))
        for slot in (0, 2):
            worker.write(local_buffers.INBOX, foreign_payload(plan, 10 * index + slot), slot * plan.payload_total)
        worker.write(local_buffers.RESULT, foreign_payload(plan, 10 * index + 5))
        owned = []
        if index != 1:
            for segment in range(index // 2, len(plan.segments), 2):
                seen[f"reduced{index}.{segment}"] = persistent.do(Reduce, 0, segment, SHARES, 0).sha256.hex()
                owned.append(OwnedSegment(0, segment, SHARES))
        result = worker.read(local_buffers.RESULT)
        persistent.do(Settle, index, index, index != 1, tuple(owned))
        path, offset = "", 0
        if index == 1:
            (directory / "payload").write_bytes(b"in front of it" + result)
            worker.write(local_buffers.RESULT, bytes(len(result)))
            path, offset = str(directory / "payload"), len(b"in front of it")
        applied = persistent.do(ApplyResult, index, path, offset, 0)
        seen[f"applied{index}"] = str((applied.round, applied.anchor_sha256, applied.state_digest))
    for name in FINAL_BUFFERS:
        seen[name] = hashlib.sha256(worker.read(name)).hexdigest()
    seen["anchor"] = applied.anchor_sha256.hex()
    anchor = worker.read(local_buffers.ANCHOR)
    assert seen["anchor"] == anchor_hash(anchor[4 * s.start : 4 * s.stop] for s in plan.segments).hex()
    return seen


def run(directory: Path, forks: Forks, manifest: Manifest, crash_points: Iterator[str]) -> tuple[dict[str, str], int]:
    with OuterDaemon(directory, manifest, forks.outer) as worker:
        persistent = Persistent(worker, crash_points)
        return scenario(persistent, make_plan(manifest), directory), persistent.deaths


@pytest.mark.parametrize("mode", ["local", "paper"])
def test_every_crash_point_gives_the_undisturbed_bits(tmp_path: Path, forks: Forks, mode: str) -> None:
    """One SIGKILL right before or after the n-th journal write, for every n of the scenario."""
    manifest = tiny_manifest(model={"num_layers": 1}, strategy={"error_feedback": mode})
    expected, _ = run(tmp_path / "calm", forks, manifest, iter(()))
    # The transactions of the modes are the same, only what is settled differs: a sample is enough for the second.
    sides, step = (("before", "after"), 1) if mode == "local" else (("before",), 3)
    number, deaths = 1, -1
    while deaths:
        deaths = 0
        for side in sides:
            seen, died = run(tmp_path / f"{side}{number}", forks, manifest, iter((f"{side}:{number}",)))
            assert seen == expected, (side, number)
            deaths += died
        number += step
    assert number > JOURNAL_WRITES_MIN


def test_crash_after_crash_still_gets_there(tmp_path: Path, forks: Forks) -> None:
    """A worker that dies at every third to ninth journal write of each life, also while it repairs the last death."""
    manifest = tiny_manifest()
    expected, _ = run(tmp_path / "calm", forks, manifest, iter(()))
    rng = random.Random(7)
    points = (f"{rng.choice(('before', 'after'))}:{rng.randint(3, 9)}" for _ in range(1000))
    seen, deaths = run(tmp_path / "crashes", forks, manifest, points)
    assert seen == expected
    assert deaths > 8


def test_kills_at_random_moments(tmp_path: Path, forks: Forks) -> None:
    """SIGKILL from outside, at moments that no code chose; larger tensors, so that most fall into an update."""
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512}
    manifest = tiny_manifest(model=sizes, strategy={"segment_elements_max": 65536})
    expected, _ = run(tmp_path / "calm", forks, manifest, iter(()))
    rng = random.Random(3)
    with OuterDaemon(tmp_path / "killed", manifest, forks.outer) as worker:
        persistent = Persistent(worker, iter(()))
        stop = threading.Event()

        def killer() -> None:
            # A bounded number: on a loaded machine a life may be too short for any progress.
            for _ in range(KILLS):
                if stop.wait(rng.uniform(0.0, 0.1)):
                    return
                process = worker.process  # looked at first: one that is being started must not be killed
                if worker.is_attached and process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)

        thread = threading.Thread(target=killer)
        thread.start()
        try:
            seen = scenario(persistent, make_plan(manifest), tmp_path / "killed")
        finally:
            stop.set()
            thread.join()
    assert seen == expected
    assert persistent.deaths > 0
