"""Whatever bytes peers send, the outer worker answers; it never dies of them, and a refusal changes no state."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import ApplyResult, CopyBase, LoadState, PreparePass, Reduce, Share, StateReady
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, form

TRIALS = 40
REFUSALS = ("bad_payload", "bad_result")


def strategy_of(name: str) -> dict[str, Any]:
    if name == "lowrank":
        return {"codec": "int4", "transform": "lowrank", "lowrank_r": 4}
    if name == "mask":
        return {"codec": "int4", "transform": "mask", "mask_keep_one_in": 4}
    return {"codec": name}


def hostile(rng: random.Random, length: int) -> bytes:
    """Noise, one repeated byte (extreme scales and exponents), or zeros with a few bytes set."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(length)
    if kind == 1:
        return bytes([rng.choice((0x00, 0x3F, 0x40, 0x5F, 0x7F, 0x80, 0xC0, 0xFF))]) * length
    data = bytearray(length)
    for _ in range(min(length, 5)):
        data[rng.randrange(length)] = rng.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4", "e3m0", "topk", "lowrank", "mask"])
def test_hostile_payloads_never_end_the_worker(name: str) -> None:
    rng = random.Random(5)
    plan = make_plan(tiny_manifest(strategy=strategy_of(name)))
    worker = InnerWorker(plan)
    worker.do(LoadState, "")
    worker.do(CopyBase)
    form(Site("Qma", worker), torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(1)), 0)
    assert worker.described is not None
    total = sum(map(sum, worker.described.payload_bytes))
    lowrank_r = plan.schedule.start.lowrank_r
    num_passes = len(worker.described.payload_bytes)
    state_round = 0
    for _ in range(TRIALS):
        worker.write(local_buffers.INBOX, hostile(rng, total))
        worker.write(local_buffers.RESULT, hostile(rng, total))
        if num_passes > 1:
            worker.write(
                local_buffers.RESULT, bytes(len(plan.segments))
            )  # announcements that pass, so that the rest is read
        for pass_index in range(num_passes):
            segment = rng.randrange(len(plan.segments))
            answer = worker.ask(Reduce, pass_index, segment, (Share(-1, 10), Share(0, 2**40)), lowrank_r)
            assert not isinstance(answer, WorkerFailed) or answer.kind in REFUSALS, answer
        for pass_index in range(1, num_passes + 1):
            answer = worker.ask(PreparePass, pass_index, lowrank_r)
            assert not isinstance(answer, WorkerFailed) or answer.kind in REFUSALS, answer
        before = worker.read(local_buffers.ANCHOR)
        answer = worker.ask(ApplyResult, state_round, "", 0, lowrank_r)
        if isinstance(answer, StateReady):
            state_round += 1
            assert worker.floats(local_buffers.ANCHOR).isfinite().all()
        else:
            assert answer.kind in REFUSALS
            assert worker.read(local_buffers.ANCHOR) == before
