"""A run directory with a real log and real snapshots, made in this process by a real outer worker: one site's life
without daemon, trainers and network. Its phases are random numbers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.store.rundir import RunDir, create_run_dir
from dilocoxd.store.snapshots import stamp_chain_head
from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.tokens.vocabulary import tokenizer_digest
from dilocoxd.wire.entry import Contribution, Entry, Signature, SignedEntry, SignedVote, genesis_hash, payload_root
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import LoadState, PreparePass, StateReady
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, form, lowrank_of

PEER = PeerId("QmA")
TOKENS = 640
TEXT = [f"Number {i} is the sum of {i - 1} and one.\n" for i in range(400)]
VOCAB = 300


@dataclass
class RunOnDisk:
    """`anchors[k]`: the parameters of state k, float32 in canonical order."""

    run_dir: RunDir
    manifest: Manifest
    anchors: list[torch.Tensor]
    digests: list[str]


def make_run(folder: Path, *, rounds: int, snapshots_at: Collection[int], **changes: dict[str, object]) -> RunOnDisk:
    """A run of `rounds` entries, its tokenizer in RUN_DIR/tokenizer. `changes` as of `tiny_manifest`."""
    tokenizer = train_tokenizer(TEXT, VOCAB)
    model = {"vocab_size": VOCAB} | changes.pop("model", {})
    named = {"sha256": tokenizer_digest(tokenizer)}
    manifest = tiny_manifest(model=model, tokenizer=named, **changes)
    site = SiteConfig(paths=PathsSection(cache=str(folder / "cache")))
    run_dir = create_run_dir(folder / "run", manifest, site)
    (run_dir.path / "tokenizer").mkdir()
    tokenizer.save(str(run_dir.path / "tokenizer" / "tokenizer.json"))
    worker = InnerWorker(make_plan(manifest))
    ready: StateReady = worker.do(LoadState, "")
    log = EntryLog(run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))
    made = RunOnDisk(run_dir, manifest, [worker.floats(local_buffers.ANCHOR)], [ready.state_digest.hex()])
    site_of = Site(PEER, worker)
    for number in range(rounds + 1):
        if number in snapshots_at:
            worker.write_snapshot(run_dir.snapshots / str(number))
            stamp_chain_head(run_dir.snapshots / str(number), log.head)
        if number < rounds:
            ready = _one_round(site_of, log, manifest.run_id, number, ready)
            made.anchors.append(worker.floats(local_buffers.ANCHOR))
            made.digests.append(ready.state_digest.hex())
    return made


def _one_round(site: Site, log: EntryLog, run_id: RunId, number: int, before: StateReady) -> StateReady:
    worker = site.worker
    assert worker.described is not None
    values = torch.randn(worker.described.numel, generator=torch.Generator().manual_seed(number)) * 0.01
    formed = form(site, values, number)
    owned = exchange([site], [0], {PEER: TOKENS})
    if len(worker.described.payloads[0].payload_bytes) > 1:
        worker.do(PreparePass, len(worker.described.payloads[0].payload_bytes), lowrank_of(site))
    lengths = tuple(length for row in worker.described.payloads[0].payload_bytes for length in row)
    result = worker.read(local_buffers.RESULT, 0, sum(lengths))
    share = Contribution(
        PEER, PhaseId(number), RoundIndex(number), 10, TOKENS, payload_root(tuple(formed.segment_hashes))
    )
    steps = (before.next_lowrank_r, before.next_inner_steps)
    entry = Entry(
        run_id, RoundIndex(number), log.head, Digest(before.state_digest), (share,), _hashes(result, lengths),
        before.lowrank_r, *steps, (PEER,) if number else (), (),
    )  # fmt: skip
    fd = os.memfd_create("result")
    try:
        os.write(fd, result)
        signature = Signature(b"key", b"signature")
        vote = SignedVote(PEER, Attempt(0), 1, signature)
        log.append(SignedEntry(entry, (signature,), (vote,)), PayloadSource(fd, 0, lengths))
    finally:
        os.close(fd)
    return commit([site], number, number, owned)[0]


def _hashes(result: bytes, lengths: tuple[int, ...]) -> tuple[Digest, ...]:
    found, start = [], 0
    for length in lengths:
        found.append(Digest(hashlib.sha256(result[start : start + length]).digest()))
        start += length
    return tuple(found)
