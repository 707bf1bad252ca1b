"""SIGKILL of one of several outer parts, each a process, at every journal write: the buffers end with the same bits."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.config.manifest import Manifest
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import WorkerError
from dilocoxd.outerworker.journal import CRASH_VARIABLE
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    CopyBase,
    FormContribution,
    LoadState,
    OwnedSegment,
    Reduce,
    Settle,
    Share,
    WriteSnapshot,
)
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.forks import Forks
from tests.harness.outer_worker.parts_end import PartsDaemon
from tests.harness.outer_worker.swarm import foreign_payload

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_PARTS = 3
MACHINES = ((3,), (2, 1), (1, 1, 1))
"""How many parts each has, with buffers and files of its own; by the part that is killed."""
SHARES = (Share(0, 300), Share(-1, 500))
JOURNAL_WRITES_MIN = 20
"""Of one part in an undisturbed scenario; fewer would mean that something is not journalled."""
FINAL_BUFFERS = (local_buffers.ANCHOR, local_buffers.MOMENTUM, local_buffers.FEEDBACK, local_buffers.OWNER_FEEDBACK)


class Persistent:
    """A daemon that starts dead parts again and asks again what was not answered, as a site does."""

    def __init__(self, parts: PartsDaemon) -> None:
        self.parts = parts
        self.deaths = 0

    async def do(self, kind: type, *arguments: Any) -> Any:
        request = self.parts.request(kind, *arguments)
        while True:
            try:
                return await self.parts.together.ask(request)
            except RequestRefused:
                raise
            except WorkerError:
                died = self.parts.restart_dead()
                assert died, "nobody is dead, and still it was not answered"
                self.deaths += died


async def scenario(persistent: Persistent, plan: OuterPlan, folder: Path) -> dict[str, Any]:
    """Genesis; a round with us; a round without us whose payload is in a file; a snapshot, and it is loaded."""
    parts, seen = persistent.parts, dict[str, Any]()
    seen["genesis"] = (await persistent.do(LoadState, "")).state_digest.hex()
    for index in range(2):
        await persistent.do(CopyBase)
        values = torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(index))
        parts.buffers.write(local_buffers.PHASE, 0, values.numpy().tobytes())
        formed = await persistent.do(FormContribution, index, 0)
        seen[f"formed{index}"] = (formed.segment_hashes, formed.norm, formed.residual_norm)
        parts.buffers.write(local_buffers.INBOX, 0, foreign_payload(plan, index))
        owned = []
        for segment in range(len(plan.segments)):
            seen[f"reduced{index}.{segment}"] = (await persistent.do(Reduce, 0, segment, SHARES, 0)).sha256.hex()
            owned.append(OwnedSegment(0, segment, SHARES))
        result, path = parts.buffers.read(local_buffers.RESULT, 0, plan.payload_total), ""
        await persistent.do(Settle, index, index, not index, () if index else tuple(owned))
        if index:
            (folder / "payload").write_bytes(result)
            path = str(folder / "payload")
        applied = await persistent.do(ApplyResult, index, path, 0, 0)
        seen[f"applied{index}"] = (applied.round, applied.state_digest)
        await persistent.do(WriteSnapshot, str(folder / f"snapshot{index}"))
    loaded = await persistent.do(LoadState, str(folder / "snapshot0"))
    assert (loaded.round, loaded.state_digest) == seen["applied0"]
    for path_ in sorted((folder / "snapshot1").iterdir()):
        seen[path_.name] = hashlib.sha256(path_.read_bytes()).hexdigest()
    for name in FINAL_BUFFERS:
        data = parts.buffers.read(name, 0, parts.buffers.size(name))
        seen[name] = hashlib.sha256(data).hexdigest()
    return seen


def run(folder: Path, forks: Forks, manifest: Manifest, killed: int, point: str) -> tuple[dict[str, Any], int]:
    """What is left of it all, and how many deaths there were."""
    with PartsDaemon(folder, manifest, forks.outer, NUM_PARTS, MACHINES[killed]) as parts:
        parts.start({killed: {CRASH_VARIABLE: point}} if point else {})
        persistent = Persistent(parts)
        return asyncio.run(scenario(persistent, make_plan(manifest), folder)), persistent.deaths


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_part_killed_at_any_journal_write_gives_the_undisturbed_bits(tmp_path: Path, forks: Forks, part: int) -> None:
    manifest = tiny_manifest(model={"num_layers": 1}, strategy={"segment_elements_max": 4096})
    expected, deaths = run(tmp_path / "calm", forks, manifest, part, "")
    number = 1
    assert not deaths
    while True:
        side = ("before", "after")[(number + part) % 2]
        seen, deaths = run(tmp_path / str(number), forks, manifest, part, f"{side}:{number}")
        assert seen == expected, (side, number)
        if not deaths:
            break
        number += 1
    assert number > JOURNAL_WRITES_MIN
