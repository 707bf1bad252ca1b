"""How much sooner several outer parts are done than one outer worker: `python -m tests.bench.outer_parts`.

Two sites' outer state side by side, one in one process, one in `--parts`, with the same made-up payloads of `--sites`
sites; they take turns, a round each. Prints one JSON object: seconds of each operation (median), the ratio of one
worker to the parts, and for each part the mapped memory that it has touched as a share of what one worker has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path

from dilocoxd.config.manifest import Manifest
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local import buffers as local_buffers, outer_worker as local
from tests.bench import end_when_told
from tests.bench.outer_memory import MIB, MODELS, Payloads, bench_manifest, resident
from tests.harness.outer_worker.forks import OUTER, Forks
from tests.harness.outer_worker.parts_end import PartsDaemon


class Timed:
    """One outer state and how long its operations took."""

    def __init__(self, daemon: PartsDaemon, payloads: Payloads) -> None:
        self.daemon, self._payloads = daemon, payloads
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._phase = 0

    async def _time(self, label: str, work: Awaitable[object]) -> None:
        began = time.perf_counter()
        await work
        self.seconds[label].append(time.perf_counter() - began)

    async def one_round(self) -> None:
        """As a site goes through it; segments are reduced as their shares come, which is all at once here."""
        daemon, plan, num_sites = self.daemon, self._payloads.plan, self._payloads.num_sites
        buffers, noise = daemon.buffers, self._payloads.noise
        await self._time("copy_base", daemon.do(local.CopyBase))
        for start in range(0, plan.layout.numel * 4, len(noise)):
            buffers.write(local_buffers.PHASE, start, noise[: plan.layout.numel * 4 - start])
        await self._time("form", daemon.do(local.FormContribution, self._phase, 0))
        rank = plan.schedule.start.lowrank_r
        starts, lengths = plan.payload_offsets_at(rank)[0], plan.payload_bytes_at(rank)[0]
        shares = tuple(local.Share(slot, 1000) for slot in range(-1, num_sites - 1))
        mine = range(0, len(plan.segments), num_sites)
        for segment in range(len(plan.segments)):
            if segment in mine:
                for slot in range(num_sites - 1):
                    buffers.write(
                        local_buffers.INBOX, slot * plan.payload_total + starts[segment], self._payloads.of(segment)
                    )
            else:
                body = buffers.read(local_buffers.OUTBOX, starts[segment], lengths[segment] - plan.record_bytes)
                buffers.write(local_buffers.RESULT, starts[segment], body + self._payloads.record)
        reduces = (daemon.do(local.Reduce, 0, segment, shares, 0) for segment in mine)
        await self._time("reduce", asyncio.gather(*reduces))
        owned = tuple(local.OwnedSegment(0, segment, shares) for segment in mine)
        await self._time("settle", daemon.do(local.Settle, self._phase, self._phase, True, owned))
        await self._time("apply", daemon.do(local.ApplyResult, self._phase, "", 0, 0))
        self._phase += 1

    def round_s(self) -> float:
        """Median of the sums over a round."""
        return statistics.median(map(sum, zip(*self.seconds.values(), strict=True)))

    def mapped(self) -> list[int]:
        """Bytes of shared memory that each process has touched."""
        pids = [part.process.pid for part in self.daemon.parts if part.process is not None]
        return [resident(pid)["RssShmem"] for pid in pids]


async def measure(manifest: Manifest, folder: Path, forks: Forks, arguments: argparse.Namespace) -> dict[str, object]:
    """Both, round by round in turn; the first round of each warms up."""
    payloads = Payloads(make_plan(manifest), arguments.sites)
    with (
        PartsDaemon(folder / "one", manifest, forks.outer, 1) as whole,
        PartsDaemon(folder / "parts", manifest, forks.outer, arguments.parts) as parts,
    ):
        timed = {"one": Timed(whole, payloads), "parts": Timed(parts, payloads)}
        for each in timed.values():
            each.daemon.start()
            await each.daemon.do(local.LoadState, "")
            await each.one_round()
            each.seconds.clear()
        for _ in range(arguments.rounds):
            for each in timed.values():
                await each.one_round()
        one, several = timed["one"], timed["parts"]
        whole_bytes, parts_bytes = one.mapped()[0], several.mapped()
        return {
            "parameters": payloads.plan.layout.numel,
            "seconds": {
                name: {label: round(statistics.median(found), 3) for label, found in each.seconds.items()}
                for name, each in timed.items()
            },
            "round_s": {name: round(each.round_s(), 3) for name, each in timed.items()},
            "ratio": round(one.round_s() / several.round_s(), 2),
            "mapped_mib": {"one": whole_bytes // MIB, "parts": [found // MIB for found in parts_bytes]},
            "share_of_one": [round(found / whole_bytes, 3) for found in parts_bytes],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.outer_parts")
    parser.add_argument("--model", choices=sorted(MODELS), default="100m")
    parser.add_argument("--codec", default="int2")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--segment-elements-max", type=int, default=1 << 20)
    arguments = parser.parse_args()
    manifest = bench_manifest(arguments.model, arguments.codec, arguments.segment_elements_max)
    with tempfile.TemporaryDirectory() as folder, Forks(OUTER) as forks:
        found = asyncio.run(measure(manifest, Path(folder), forks, arguments))
    print(json.dumps(found | {"load": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}))


if __name__ == "__main__":
    end_when_told()
    main()
