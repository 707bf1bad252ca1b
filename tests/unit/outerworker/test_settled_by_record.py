"""An owner's residual follows from what its entry says was counted: shares are weighed once, when they are reduced."""

from __future__ import annotations

import torch

from dilocoxd.outer.clipping import ClipRecord
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import LoadState, Settle
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, exchange, form

NAMES = ("Qma", "Qmb", "Qmc")
LACKING_TIMES = 3
"""What int4 loses of a mean of Gaussians is a tenth of it, and a third of three shares is 1 / sqrt(3) of it."""


def residual(factors: tuple[float, ...]) -> torch.Tensor:
    """OWNER_FEEDBACK of the first site, which reduced all, after an entry whose records have these factors."""
    plan = make_plan(tiny_manifest(strategy={"codec": "int4"}))
    sites = [Site(name, InnerWorker(plan)) for name in NAMES]
    for number, site in enumerate(sites):
        site.worker.do(LoadState, "")
        form(site, torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(number)), 0)
    owned = exchange(sites, (0,), dict.fromkeys(NAMES, 10))
    rank = plan.schedule.start.lowrank_r
    record = ClipRecord(1.0, factors).encode(plan.manifest.round.peers_max)
    ends = zip(plan.payload_offsets_at(rank)[0], plan.payload_bytes_at(rank)[0], strict=True)
    owner = sites[0].worker
    for start, length in ends:
        if factors:
            owner.write(local_buffers.RESULT, record, start + length - len(record))
    owner.do(Settle, 0, 0, True, owned["Qma"])
    return owner.floats(local_buffers.OWNER_FEEDBACK)


def test_what_is_forgotten_leaves_no_feedback() -> None:
    """Formed before an entry was taken back (R29.7): loading the state keeps it until its fate is known."""
    plan = make_plan(tiny_manifest(strategy={"codec": "int4"}))
    left = []
    for forgets in (False, True):
        site = Site("Qma", InnerWorker(plan))
        site.worker.do(LoadState, "")
        form(site, torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(7)), 0)
        site.worker.do(LoadState, "", True)
        site.worker.do(Settle, 0, 0, False, (), 0, "", 0, 0, "", (), forgets)
        left.append(float(site.worker.floats(local_buffers.FEEDBACK).norm()))
    assert left[0] > 0 and left[1] == 0


def test_what_the_record_counts_is_in_the_residual() -> None:
    found, whole, without = residual(()), residual((1.0, 1.0, 1.0)), residual((1.0, 1.0, 0.0))
    assert torch.equal(found, whole), "nobody stands out"
    assert without.norm() > LACKING_TIMES * whole.norm(), "a third of the mean is missing"
