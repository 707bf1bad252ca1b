"""CPU of the outer worker's operations, in nanoseconds per parameter and round: `python -m tests.bench.outer.step`.

The worker of `--sites` sites in this process, on memfds, one thread, with the compiled loops and by torch alone in
turns; it owns 1/sites of the segments, whose shares are made up. Medians of the rounds after the first; `copies`: in
copies of the fp32 parameters, timed in the same rounds. `check` comes before a vote, `apply` has the digest of the
state. `--profile` prints where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.wire.local import buffers as local_buffers, outer_worker as local
from tests.bench.compression import by_torch, show
from tests.bench.outer_memory import MODELS, Payloads, bench_manifest
from tests.harness.outer_worker.in_process import InnerWorker

OPERATIONS = ("copy base", "form", "reduce", "check", "settle", "apply")


class Step:
    """Rounds of one worker."""

    def __init__(self, plan: OuterPlan, num_sites: int) -> None:
        self._plan, self._num_sites = plan, num_sites
        self._worker, self._payloads = InnerWorker(plan), Payloads(plan, num_sites)
        self._values, self._copy = torch.randn(plan.layout.numel), torch.empty(plan.layout.numel)
        self._worker.do(local.LoadState, "")
        self._phase = 0
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[what].append(time.process_time() - began)

    def round(self) -> None:
        """As a site goes through it."""
        worker, plan, phase = self._worker, self._plan, self._phase
        with self._timed("copy"):
            self._copy.copy_(self._values)
        with self._timed("copy base"):
            worker.do(local.CopyBase)
        noise, size = self._payloads.noise, plan.layout.numel * 4
        for start in range(0, size, len(noise)):
            worker.write(local_buffers.PHASE, noise[: size - start], start)
        with self._timed("form"):
            worker.do(local.FormContribution, phase, 0)
        owned = self._shares()
        with self._timed("reduce"):
            for one in owned:
                worker.do(local.Reduce, 0, one.segment, one.shares, 0)
        self._results({one.segment for one in owned})
        with self._timed("check"):
            worker.do(local.PreparePass, plan.num_passes, plan.schedule.start.lowrank_r)
        with self._timed("settle"):
            worker.do(local.Settle, phase, phase, True, owned)
        with self._timed("apply"):
            worker.do(local.ApplyResult, phase, "", 0, 0)
        self._phase += 1

    def _shares(self) -> tuple[local.OwnedSegment, ...]:
        """INBOX as others would have filled it."""
        plan, owned = self._plan, []
        starts = plan.payload_offsets_at(plan.schedule.start.lowrank_r)[0]
        for segment in range(0, len(plan.segments), self._num_sites):
            for slot in range(self._num_sites - 1):
                place = slot * plan.payload_total + starts[segment]
                self._worker.write(local_buffers.INBOX, self._payloads.of(segment), place)
            shares = tuple(local.Share(slot, 1000) for slot in range(-1, self._num_sites - 1))
            owned.append(local.OwnedSegment(0, segment, shares))
        return tuple(owned)

    def _results(self, own: set[int]) -> None:
        """RESULT of the segments that others reduce: what we sent."""
        plan, rank = self._plan, self._plan.schedule.start.lowrank_r
        starts, lengths = plan.payload_offsets_at(rank)[0], plan.payload_bytes_at(rank)[0]
        for segment in set(range(len(plan.segments))) - own:
            start, length = starts[segment], lengths[segment]
            body = self._worker.read(local_buffers.OUTBOX, start, length - plan.record_bytes)
            self._worker.write(local_buffers.RESULT, body + self._payloads.record, start)

    def row(self, codec: str, way: str) -> dict[str, object]:
        """Of the rounds after the first."""
        numel = self._plan.layout.numel
        medians = {what: statistics.median(found[1:]) for what, found in self.seconds.items()}
        whole = sum(medians[what] for what in OPERATIONS)
        each = {f"{what} ns": 1e9 * medians[what] / numel for what in OPERATIONS}
        return {"codec": codec, "loops": way, "sites": self._num_sites, **each, "round ns": 1e9 * whole / numel} | {
            "copies": whole / medians["copy"]
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outer.step", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="10m")
    parser.add_argument("--codecs", default="int4,int2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = {
        (codec, way): Step(make_plan(bench_manifest(options.model, codec, 1 << 20)), options.sites)
        for codec in options.codecs.split(",")
        for way in ("compiled", "torch")
    }
    for (codec, way), step in steps.items():
        run(way, step.round)
        if options.profile:
            with cProfile.Profile() as profile:
                run(way, step.round)
            print(codec, way, flush=True)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    for _ in range(options.rounds):
        for (_, way), step in steps.items():
            run(way, step.round)
    print(f"{platform.machine()}, torch {torch.__version__}, 1 thread, CPU time, load {os.getloadavg()[0]:.1f}\n")
    show([step.row(codec, way) for (codec, way), step in steps.items()])


def run(way: str, action: Callable[[], None]) -> None:
    """One round as a site with or without the compiled loops does it."""
    action() if way == "compiled" else by_torch(action)


if __name__ == "__main__":
    main()
