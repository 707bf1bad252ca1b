"""Memory and time of a real outer worker with a large synthetic state: `python -m tests.bench.outer_memory`.

One worker plays one of `--sites` sites: it owns 1/sites of the segments and gets made-up payloads for them. Prints one
JSON object: resident memory of the process (anonymous = private, file = libraries, shmem = mapped buffers), memory that
the shared buffers really take, both in multiples of the fp32 parameters, and seconds per operation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dilocoxd.config.manifest import Manifest
from dilocoxd.outer.clipping import ClipRecord
from dilocoxd.outer.passes import SegmentPass, encode_pass
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.wire.local import buffers as local_buffers, outer_worker as local
from tests.bench import end_when_told
from tests.harness.outer_worker.daemon_end import OuterDaemon, tiny_manifest
from tests.harness.outer_worker.forks import OUTER, Forks

MODELS = {
    "100m": {"vocab_size": 16384, "hidden_size": 768, "num_layers": 12, "num_heads": 12, "num_kv_heads": 4,
             "intermediate_size": 2048, "seq_len": 512},
    "10m": {"vocab_size": 4096, "hidden_size": 320, "num_layers": 6, "num_heads": 5, "num_kv_heads": 5,
            "intermediate_size": 864, "seq_len": 128},
    "tiny": {},
}  # fmt: skip
MIB = 1 << 20
LOOKS_EVERY = 4
"""Entries of which one is also to be evaluated without one contribution; a site draws lots (workers.without_one_every).
"""


def resident(pid: int) -> dict[str, int]:
    """Bytes of RssAnon, RssFile, RssShmem of a process."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile", "RssShmem"):
            found[name] = int(value.split()[0]) * 1024
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Measured:
    """What a run collected."""

    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    private: list[int] = field(default_factory=list)
    """RssAnon after each round."""
    peak_shared: int = 0
    peak_parts: dict[str, int] = field(default_factory=dict)
    peak_private: int = 0
    file_backed: int = 0
    signs_of_life: int = 0


class Payloads:
    """What other sites and trainers leave in the buffers: made up, the same for all segments of one length."""

    def __init__(self, plan: OuterPlan, num_sites: int) -> None:
        self.plan, self.num_sites = plan, num_sites
        everything = ClipRecord(1.0, (1.0,) * num_sites)
        self.record = everything.encode(plan.manifest.round.peers_max) if plan.record_bytes else b""
        self.noise = torch.randn(MIB, generator=torch.Generator().manual_seed(1)).mul_(0.01).numpy().tobytes()
        """For PHASE, piece by piece, so that this process stays small."""
        self._of_length: dict[int, bytes] = {}

    def of(self, segment: int) -> bytes:
        """What another site could have sent for it."""
        at = SegmentPass(self.plan.transform, 0, self.plan.segments[segment])
        numel = self.plan.segments[segment].numel
        if numel not in self._of_length:
            values = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).mul_(0.01)
            payload = bytearray(at.payload_bytes)
            encode_pass(at, values, payload)
            self._of_length[numel] = bytes(payload) + bytes(self.plan.record_bytes)
        return self._of_length[numel]


class Bench:
    """Rounds on one worker."""

    def __init__(self, worker: OuterDaemon, plan: OuterPlan, num_sites: int) -> None:
        self.worker = worker
        self.plan = plan
        lowrank_r = plan.schedule.start.lowrank_r
        self.starts, self.lengths = plan.payload_offsets_at(lowrank_r)[0], plan.payload_bytes_at(lowrank_r)[0]
        self.num_sites = num_sites
        self.measured = Measured()
        self.phase = 0
        self.payloads = Payloads(plan, num_sites)

    def timed(self, label: str, kind: type, *arguments: Any) -> Any:
        assert self.worker.process is not None
        started, cpu = time.perf_counter(), cpu_seconds(self.worker.process.pid)
        answer = self.worker.do(kind, *arguments)
        self.measured.seconds[label].append(time.perf_counter() - started)
        self.measured.cpu[label].append(cpu_seconds(self.worker.process.pid) - cpu)
        self.note()
        return answer

    def note(self) -> None:
        """Remember the largest memory seen at any request's end."""
        measured = self.measured
        parts = {buffer.name: self.worker.allocated(buffer.name) for buffer in self.plan.described().buffers}
        if sum(parts.values()) > measured.peak_shared:
            measured.peak_shared, measured.peak_parts = sum(parts.values()), parts
        assert self.worker.process is not None
        now = resident(self.worker.process.pid)
        measured.peak_private = max(measured.peak_private, now["RssAnon"])
        measured.file_backed = now["RssFile"]

    def write_phase(self) -> None:
        """What trainers leave in PHASE."""
        size, noise = self.plan.layout.numel * 4, self.payloads.noise
        for start in range(0, size, len(noise)):
            self.worker.write(local_buffers.PHASE, noise[: size - start], start)

    def one_round(self, index: int, owned_segments: list[int]) -> None:
        self.timed("copy_base", local.CopyBase)
        self.write_phase()
        self.timed("form", local.FormContribution, self.phase, 0)
        total, owned = self.plan.payload_total, []
        assert self.worker.process is not None
        started, cpu = time.perf_counter(), cpu_seconds(self.worker.process.pid)
        for segment in owned_segments:
            start, length = self.starts[segment], self.lengths[segment]
            payload = self.payloads.of(segment)
            assert len(payload) == length
            for slot in range(self.num_sites - 1):
                self.worker.write(local_buffers.INBOX, payload, slot * total + start)
            shares = tuple(local.Share(slot, 1000) for slot in range(-1, self.num_sites - 1))
            self.worker.do(local.Reduce, 0, segment, shares, 0)
            owned.append(local.OwnedSegment(0, segment, shares))
        self.measured.seconds["reduce_all_owned"].append(time.perf_counter() - started)
        self.measured.cpu["reduce_all_owned"].append(cpu_seconds(self.worker.process.pid) - cpu)
        for segment in set(range(len(self.plan.segments))) - set(owned_segments):
            start, length = self.starts[segment], self.lengths[segment]
            body = self.worker.read(local_buffers.OUTBOX, start, length - self.plan.record_bytes)
            self.worker.write(local_buffers.RESULT, body + self.payloads.record, start)
        self.note()
        looked_at = (0,) if index % LOOKS_EVERY == 1 else ()
        self.timed("settle", local.Settle, self.phase, index, True, tuple(owned), 0, "", 0, 0, "", looked_at)
        self.timed("apply_and_digest", local.ApplyResult, index, "", 0, 0)
        self.timed("save_site", local.SaveSite, str(self.worker.directory / "feedback.safetensors"), self.phase)
        self.phase += 1
        assert self.worker.process is not None
        self.measured.private.append(resident(self.worker.process.pid)["RssAnon"])

    def run(self, rounds: int, directory: Path, *, owners_move: bool = False) -> Measured:
        """`owners_move`: every round other segments are reduced here."""
        self.timed("open", local.OpenState)
        self.timed("genesis", local.LoadState, "")
        for index in range(rounds):
            first = index % self.num_sites if owners_move else 0
            self.one_round(index, list(range(first, len(self.plan.segments), self.num_sites)))
        self.timed("snapshot", local.WriteSnapshot, str(directory / "snapshot"))
        self.timed("load_snapshot", local.LoadState, str(directory / "snapshot"))
        self.measured.signs_of_life = len(self.worker.alive)
        return self.measured


def bench_manifest(model: str, codec: str, segment_elements_max: int) -> Manifest:
    return tiny_manifest(
        model=MODELS[model], strategy={"codec": codec, "segment_elements_max": segment_elements_max, "delay": "arrival"}
    )


def report(plan: OuterPlan, measured: Measured) -> dict[str, Any]:
    parameters = plan.layout.numel * 4
    third = max(1, len(measured.private) // 3)
    return {
        "parameters": plan.layout.numel,
        "parameter_mib": round(parameters / MIB, 1),
        "segments": len(plan.segments),
        "payload_mib": round(plan.payload_total / MIB, 2),
        "private_mib": round(measured.peak_private / MIB, 1),
        "libraries_mib": round(measured.file_backed / MIB, 1),
        "shared_mib": {name: round(size / MIB, 1) for name, size in measured.peak_parts.items()},
        "shared_x": round(measured.peak_shared / parameters, 3),
        "private_plus_shared_x": round((measured.peak_shared + measured.peak_private) / parameters, 3),
        "private_growth_mib": round(
            (statistics.median(measured.private[-third:]) - statistics.median(measured.private[:third])) / MIB, 2
        ),
        "rounds": len(measured.private),
        "seconds": {label: round(statistics.median(values), 3) for label, values in measured.seconds.items()},
        "cpu_seconds": {label: round(statistics.median(values), 2) for label, values in measured.cpu.items()},
        "signs_of_life": measured.signs_of_life,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="100m")
    parser.add_argument("--codec", default="int4")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--segment-elements-max", type=int, default=1 << 20)
    parser.add_argument("--owners-move", action="store_true", help="Other segments are reduced here every round.")
    arguments = parser.parse_args()
    manifest = bench_manifest(arguments.model, arguments.codec, arguments.segment_elements_max)
    plan = make_plan(manifest)
    with (
        tempfile.TemporaryDirectory() as folder,
        Forks(OUTER) as forks,
        OuterDaemon(Path(folder) / "site", manifest, forks.outer) as worker,
    ):
        started = time.perf_counter()
        worker.start()
        starting = time.perf_counter() - started
        result = report(
            plan,
            Bench(worker, plan, arguments.sites).run(arguments.rounds, Path(folder), owners_move=arguments.owners_move),
        )
    json.dump(result | {"start_s": round(starting, 2), "sites": arguments.sites, "cores": os.cpu_count()}, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    end_when_told()
    main()
