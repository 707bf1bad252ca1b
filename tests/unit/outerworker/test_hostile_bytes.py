"""Whatever bytes peers send, the outer worker answers; it never dies of them, and a refusal changes no state."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import Identity, Transform
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire import local
from dilocoxd.wire.layout import Layout
from dilocoxd.wire.local import ApplyEntry, CopyBase, LoadState, PreparePass, Reduce, Share, StateReady, WorkerFailed
from tests.harness.inner_worker import InnerWorker
from tests.harness.outer_daemon import tiny_manifest
from tests.harness.outer_swarm import Site, form

TRIALS = 40
REFUSALS = ("bad_payload", "bad_result")


def transform_of(name: str, layout: Layout) -> Transform:
    if name == "lowrank":
        return LowRank(layout, 4, codec_from_name("int4"))
    return Identity(layout, codec_from_name(name))


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


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4", "e3m0", "topk", "lowrank"])
def test_hostile_payloads_never_end_the_worker(name: str) -> None:
    rng = random.Random(5)
    plan = make_plan(tiny_manifest())
    worker = InnerWorker(dataclasses.replace(plan, transform=transform_of(name, plan.layout)))
    worker.do(LoadState, "")
    worker.do(CopyBase)
    form(Site("Qma", worker), torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(1)), 0)
    assert worker.described is not None
    total = sum(map(sum, worker.described.payload_bytes))
    num_passes = len(worker.described.payload_bytes)
    state_round = 0
    for _ in range(TRIALS):
        worker.write(local.INBOX, hostile(rng, total))
        worker.write(local.RESULT, hostile(rng, total))
        for pass_index in range(num_passes):
            segment = rng.randrange(len(plan.segments))
            answer = worker.ask(Reduce, pass_index, segment, (Share(-1, 10), Share(0, 2**40)), 0)
            assert not isinstance(answer, WorkerFailed) or answer.kind in REFUSALS, answer
        for pass_index in range(1, num_passes + 1):
            answer = worker.ask(PreparePass, pass_index, 0)
            assert not isinstance(answer, WorkerFailed) or answer.kind in REFUSALS, answer
        before = worker.read(local.ANCHOR)
        answer = worker.ask(ApplyEntry, state_round, "", 0, 0)
        if isinstance(answer, StateReady):
            state_round += 1
            assert worker.floats(local.ANCHOR).isfinite().all()
        else:
            assert answer.kind in REFUSALS
            assert worker.read(local.ANCHOR) == before
