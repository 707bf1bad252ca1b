"""X13: whoever has the shares of a segment, and what the chain says, makes the owner's bytes; nobody else's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.outer.clipping import decode_record
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.store.audits import BEFORE_NAME, share_name, write_case
from dilocoxd.wire.audit import AuditCase, ShareProof
from dilocoxd.wire.entry import Contribution, Entry, Signature
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import LoadState, OpenState, ReduceAgain, ReducedAgain
from dilocoxd.wire.local.worker import WorkerFailed
from dilocoxd.wire.merkle import MerkleTree
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form, take_anchor

SIGNED = Signature(b"k", b"s")
NO_HASH = bytes(32)
ROUNDS = 4
AGES = {"Qmb": 1}
TOKENS = {"Qma": 700, "Qmb": 2000, "Qmc": 900}


def opened(plan: OuterPlan) -> InnerWorker:
    worker = InnerWorker(plan)
    worker.do(OpenState)
    worker.do(LoadState, "")
    return worker


def case_of(number: int, outboxes: dict[str, bytes], segment: int, table: tuple[int, ...], missing: int) -> AuditCase:
    """Of entry `number`; its result hashes are filled in by whoever needs them."""
    contributions, proofs = [], []
    for peer in sorted(outboxes):
        parts, start = [], 0
        for length in table:
            parts.append(hashlib.sha256(outboxes[peer][start : start + length]).digest())
            start += length
        tree = MerkleTree(parts)
        base = RoundIndex(max(0, number - AGES.get(peer, 0)))
        named = Contribution(PeerId(peer), PhaseId(number), base, 10, TOKENS[peer], tree.root)
        contributions.append(named)
        proofs.append(ShareProof(parts[segment], tree.proof(segment)))
    entry = Entry(
        "run", RoundIndex(number), NO_HASH, NO_HASH, tuple(contributions), (NO_HASH,) * len(table), 0, 0, 10, (), ()
    )  # fmt: skip
    return AuditCase(entry, (SIGNED,) * len(proofs), segment, "Qma", missing, b"", tuple(proofs))


def written(folder: Path, case: AuditCase, outboxes: dict[str, bytes], piece: slice, before: bytes) -> Path:
    folder.mkdir(parents=True)
    write_case(folder, case)
    for place, peer in enumerate(sorted(outboxes)):
        (folder / share_name(place)).write_bytes(outboxes[peer][piece])
    (folder / BEFORE_NAME).write_bytes(before[piece])
    return folder


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("names", ["abc", "ab"])
@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16", "int8", "int4", "int2", "topk", "centered"])
def test_sum_made_again_has_the_owners_bytes(tmp_path: Path, codec: str, names: str, missing: int) -> None:
    """Clipping (one site is far too large), late contributions, groups of two and the last round's center included;
    by a worker that stands at another round, and holds other payloads by then."""
    changes: dict[str, Any] = {"strategy": {"codec": "int4" if codec == "centered" else codec}}
    changes["aggregation"] = {"centered_clip": codec == "centered"}
    plan = make_plan(tiny_manifest(reduction={"owner_feedback": "none"}, **changes))
    sites = [Site(f"Qm{name}", opened(plan)) for name in names]
    elsewhere = opened(plan)
    (table,) = plan.payload_bytes_at(plan.schedule.start.lowrank_r)
    (starts,) = plan.payload_offsets_at(plan.schedule.start.lowrank_r)
    results: list[bytes] = []
    checked = 0
    for number in range(ROUNDS):
        for site in sites:
            generator = torch.Generator().manual_seed(1000 * number + ord(site.peer[-1]))
            scale = 40.0 if site.peer == "Qmb" and number == 2 else 1.0 + number
            form(site, torch.randn(plan.layout.numel, generator=generator) * scale, number)
        ages = {peer: min(age, number) for peer, age in AGES.items()}
        owned = exchange(sites, (0, 1, 0), TOKENS, ages, missing)
        outboxes = {site.peer: site.worker.read(local_buffers.OUTBOX) for site in sites}
        results.append(sites[0].worker.read(local_buffers.RESULT))
        commit(sites, number, number, owned)
        take_anchor(sites)
        for segment, length in enumerate(table):
            piece = slice(starts[segment], starts[segment] + length)
            case = case_of(number, outboxes, segment, table, missing)
            if len(sites) == 2:
                ends = [result[piece][length - plan.record_bytes :][:2] for result in results[-9:-1]]
                case = AuditCase(case.entry, case.offers, segment, "", missing, b"".join(ends), case.proofs)
            before = results[-2] if number else bytes(len(results[-1]))
            folder = written(tmp_path / f"{number}-{segment}", case, outboxes, piece, before)
            for worker in (sites[-1].worker, elsewhere):
                again: ReducedAgain = worker.do(ReduceAgain, str(folder))
                assert again.sha256 == hashlib.sha256(results[-1][piece]).digest()
            checked += 1
    assert checked == ROUNDS * len(table) > ROUNDS


def test_auditor_makes_the_owners_bytes_when_a_share_was_left_out(tmp_path: Path) -> None:
    """C9: one of three flips its sign; nothing of it is counted, by the owner and by who sums again."""
    plan = make_plan(tiny_manifest(reduction={"owner_feedback": "none"}, strategy={"codec": "int4"}))
    sites = [Site(f"Qm{name}", opened(plan)) for name in "abc"]
    (table,), (starts,) = plan.payload_bytes_at(0), plan.payload_offsets_at(0)
    generator = torch.Generator().manual_seed(1)
    common = torch.randn(plan.layout.numel, generator=generator)
    for site in sites:
        sign = -1.0 if site.peer == "Qmb" else 1.0
        form(site, sign * common + 0.3 * torch.randn(plan.layout.numel, generator=generator), 0)
    exchange(sites, (0,), TOKENS)
    outboxes = {site.peer: site.worker.read(local_buffers.OUTBOX) for site in sites}
    result = sites[0].worker.read(local_buffers.RESULT)
    for segment, length in enumerate(table):
        piece = slice(starts[segment], starts[segment] + length)
        assert decode_record(bytearray(result[piece][length - plan.record_bytes :])).factors[:3] == (1, 0, 1)
        folder = written(tmp_path / str(segment), case_of(0, outboxes, segment, table, 0), outboxes, piece, b"")
        again: ReducedAgain = sites[2].worker.do(ReduceAgain, str(folder))
        assert again.sha256 == hashlib.sha256(result[piece]).digest()


def test_another_share_gives_other_bytes_and_one_that_does_not_decode_is_named(tmp_path: Path) -> None:
    plan = make_plan(tiny_manifest(reduction={"owner_feedback": "none"}, strategy={"codec": "int4"}))
    sites = [Site(f"Qm{name}", opened(plan)) for name in "abc"]
    (table,) = plan.payload_bytes_at(0)
    for site in sites:
        form(site, torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(ord(site.peer[-1]))), 0)
    exchange(sites, (0,), TOKENS)
    outboxes = {site.peer: site.worker.read(local_buffers.OUTBOX) for site in sites}
    honest = hashlib.sha256(sites[0].worker.read(local_buffers.RESULT)[: table[0]]).digest()
    piece, case = slice(0, table[0]), case_of(0, outboxes, 0, table, 0)
    folder = written(tmp_path / "sound", case, outboxes, piece, b"")
    assert sites[2].worker.do(ReduceAgain, str(folder)).sha256 == honest
    swapped = {"Qma": outboxes["Qmb"], "Qmb": outboxes["Qma"], "Qmc": outboxes["Qmc"]}
    folder = written(tmp_path / "swapped", case, swapped, piece, b"")
    assert sites[2].worker.do(ReduceAgain, str(folder)).sha256 != honest
    hostile = outboxes | {"Qmb": b"\xff" * len(outboxes["Qmb"])}
    folder = written(tmp_path / "hostile", case, hostile, piece, b"")
    refused = sites[2].worker.ask(ReduceAgain, str(folder))
    assert isinstance(refused, WorkerFailed)
    assert (refused.kind, refused.detail) == ("bad_payload", "1")
    (folder / share_name(2)).unlink()
    assert isinstance(sites[2].worker.ask(ReduceAgain, str(folder)), WorkerFailed)
    assert sites[2].worker.ask(ReduceAgain, str(tmp_path / "nowhere")).kind == "store"


def test_genesis_digest_is_that_of_a_worker_that_audits_nothing(tmp_path: Path) -> None:
    """Summing again changes nothing of the site's own: state, feedback, buffers."""
    plan = make_plan(tiny_manifest(reduction={"owner_feedback": "none"}))
    site = Site("Qma", opened(plan))
    names = [buffer.name for buffer in site.worker.described.buffers if buffer.name != local_buffers.JOURNAL]
    form(site, torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(7)), 0)
    outbox = {"Qma": site.worker.read(local_buffers.OUTBOX)}
    before = {name: Digest(hashlib.sha256(site.worker.read(name)).digest()) for name in names}
    (table,) = plan.payload_bytes_at(0)
    folder = written(tmp_path / "one", case_of(0, outbox, 0, table, 0), outbox, slice(0, table[0]), b"")
    site.worker.do(ReduceAgain, str(folder))
    assert before == {name: Digest(hashlib.sha256(site.worker.read(name)).digest()) for name in names}
