"""Rounds between real outer workers, with the test in the place of the daemons and the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from dilocoxd.outer.passes import SegmentPass, encode_pass
from dilocoxd.outerworker.plan import OuterPlan
from dilocoxd.outerworker.schedule_memory import Memory
from dilocoxd.outerworker.tensor_file import anchor_entries, memory_entries, momentum_entries
from dilocoxd.store import snapshots
from dilocoxd.store.tensor_header import encode_header
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    ContributionFormed,
    CopyBase,
    FormContribution,
    OpenState,
    OwnedSegment,
    PreparePass,
    Reduce,
    Settle,
    Share,
    StateReady,
)
from dilocoxd.wire.state_digest import leaf_of, root_of
from tests.harness.outer_worker.daemon_end import OuterDaemon


@dataclass
class Site:
    """One site: its worker and the INBOX slot that each peer's payload takes there."""

    peer: str
    worker: OuterDaemon
    slots: dict[str, int] = dataclasses.field(default_factory=dict)


def form(site: Site, pseudo_gradient: torch.Tensor, phase: int) -> ContributionFormed:
    """What a trainer and its daemon do at a boundary: PHASE = u, FormContribution."""
    site.worker.write_floats(local_buffers.PHASE, pseudo_gradient)
    formed: ContributionFormed = site.worker.do(FormContribution, phase, 0)
    assert formed.is_finite
    return formed


@dataclass(frozen=True)
class Piece:
    """One segment of one pass; it starts at `offset` of OUTBOX, of RESULT, and of a slot of INBOX."""

    pass_index: int
    segment: int
    offset: int
    length: int


def pieces_of(ordered: Sequence[Site], lowrank_r: int) -> Iterator[Piece]:
    """Pass by pass, segment by segment; all prepare a later pass before its first piece comes."""
    described = ordered[0].worker.described
    assert described is not None
    table = next(each for each in described.payloads if each.lowrank_r == lowrank_r)
    offset = 0
    for pass_index, lengths in enumerate(table.payload_bytes):
        if pass_index:
            for site in ordered:
                site.worker.do(PreparePass, pass_index, lowrank_r)
        for segment, length in enumerate(lengths):
            yield Piece(pass_index, segment, offset, length)
            offset += length


def exchange(
    sites: Sequence[Site],
    owners: Sequence[int],
    tokens: dict[str, int],
    ages: Mapping[str, int] = MappingProxyType({}),
    missing: int = 0,
) -> dict[str, tuple[OwnedSegment, ...]]:
    """Move payloads to their owners, reduce, and give every site the results; returns what each site owned.

    `owners[s]` indexes the sites in sorted peer order; without `tokens` everybody weighs the same.
    `ages`: rounds between base and round; 0 where not named. `missing`: contributors that the round is short of.
    """
    ordered = sorted(sites, key=lambda site: site.peer)
    lowrank_r = lowrank_of(ordered[0])
    owned: dict[str, list[OwnedSegment]] = {site.peer: [] for site in ordered}
    for piece in pieces_of(ordered, lowrank_r):
        owner = ordered[owners[piece.segment % len(owners)]]
        shares = _collect(ordered, owner, piece, tokens)
        shares = tuple(
            dataclasses.replace(share, age=ages.get(site.peer, 0), missing=missing)
            for share, site in zip(shares, ordered, strict=True)
        )
        owned[owner.peer].append(_reduce(owner, piece, shares, lowrank_r))
        result = owner.worker.read(local_buffers.RESULT, piece.offset, piece.length)
        for site in ordered:
            site.worker.write(local_buffers.RESULT, result, piece.offset)
    return {peer: tuple(items) for peer, items in owned.items()}


def gather(sites: Sequence[Site], tokens: dict[str, int]) -> dict[str, tuple[OwnedSegment, ...]]:
    """Give every site the payloads of all, and have each sum all of them (X11); all must make the same bytes."""
    ordered = sorted(sites, key=lambda site: site.peer)
    lowrank_r = lowrank_of(ordered[0])
    owned: dict[str, list[OwnedSegment]] = {site.peer: [] for site in ordered}
    for piece in pieces_of(ordered, lowrank_r):
        for site in ordered:
            shares = _collect(ordered, site, piece, tokens)
            owned[site.peer].append(_reduce(site, piece, shares, lowrank_r))
        results = {site.worker.read(local_buffers.RESULT, piece.offset, piece.length) for site in ordered}
        assert len(results) == 1, f"pass {piece.pass_index} segment {piece.segment}: sites sum to different bytes"
    return {peer: tuple(items) for peer, items in owned.items()}


def _reduce(owner: Site, piece: Piece, shares: tuple[Share, ...], lowrank_r: int) -> OwnedSegment:
    owner.worker.do(Reduce, piece.pass_index, piece.segment, shares, lowrank_r)
    return OwnedSegment(piece.pass_index, piece.segment, shares)


def lowrank_of(site: Site) -> int:
    """Low rank of the next entry, as the site's state says."""
    assert site.worker.described is not None
    if len(site.worker.described.payloads) == 1:
        return site.worker.described.payloads[0].lowrank_r
    ready: StateReady = site.worker.do(OpenState)
    return ready.lowrank_r


def _collect(ordered: Sequence[Site], owner: Site, piece: Piece, tokens: dict[str, int]) -> tuple[Share, ...]:
    """Bring one segment of everybody to its owner."""
    assert owner.worker.described is not None
    total = max(sum(map(sum, each.payload_bytes)) for each in owner.worker.described.payloads)
    shares = []
    for number, site in enumerate(ordered):
        slot = -1 if site is owner else owner.slots.get(site.peer, number)
        shares.append(Share(slot, tokens.get(site.peer, 1000)))
        if slot >= 0:
            share = site.worker.read(local_buffers.OUTBOX, piece.offset, piece.length)
            owner.worker.write(local_buffers.INBOX, share, slot * total + piece.offset)
    return tuple(shares)


def commit(
    sites: Sequence[Site],
    round_index: int,
    phase: int,
    owned: dict[str, tuple[OwnedSegment, ...]],
    without: Mapping[str, int] = MappingProxyType({}),
) -> list[StateReady]:
    """Settle (all included) and apply everywhere. `without`: by site, place of the contribution that it leaves out."""
    answers = []
    peers = sorted(site.peer for site in sites)
    for site in sites:
        left_out = (without[site.peer],) if site.peer in without else ()
        place = peers.index(site.peer)
        site.worker.do(Settle, phase, round_index, True, owned[site.peer], place, "", 0, 0, "", left_out)
        answers.append(site.worker.do(ApplyResult, round_index, "", 0, lowrank_of(site)))
    return answers


def take_anchor(sites: Sequence[Site]) -> None:
    """CopyBase everywhere: a new phase starts from the present anchor."""
    for site in sites:
        site.worker.do(CopyBase)


def foreign_payload(plan: OuterPlan, seed: int) -> bytes:
    """Payload of another site with a random pseudo-gradient."""
    values = torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(seed))
    payload = bytearray(plan.payload_total)
    view = memoryview(payload)
    lowrank_r = plan.schedule.start.lowrank_r
    starts, lengths = plan.payload_offsets_at(lowrank_r)[0], plan.payload_bytes_at(lowrank_r)[0]
    for segment, start, length in zip(plan.segments, starts, lengths, strict=True):
        d = values[segment.start : segment.stop].clone()
        body = length - plan.record_bytes_of(0)
        encode_pass(SegmentPass(plan.transform, 0, segment), d, view[start : start + body])
    return bytes(payload)


def write_state(directory: Path, plan: OuterPlan, round_index: int, anchor: torch.Tensor) -> None:
    """A snapshot with a chosen anchor and zero momentum, as another site could have written it."""
    temporary = snapshots.temporary_directory(directory)
    temporary.mkdir(parents=True)
    momentum = torch.zeros(plan.num_slots * plan.layout.numel)
    memory = Memory(plan, memoryview(bytearray(plan.memory_total)))
    memory.begin()
    files = [
        (snapshots.ANCHOR_NAME, anchor_entries(plan), anchor),
        (snapshots.MOMENTUM_NAME, momentum_entries(plan), momentum),
    ]
    for name, entries, values in files[: 1 + (plan.num_slots > 0)]:
        (temporary / name).write_bytes(encode_header(entries, {}) + values.numpy().tobytes())
    names = [name for name, _, _ in files[: 1 + (plan.num_slots > 0)]]
    if plan.has_memory:
        text = encode_header(memory_entries(plan), {}) + memory.header_bytes(0) + memory.regions
        (temporary / snapshots.MEMORY_NAME).write_bytes(text)
        names.append(snapshots.MEMORY_NAME)
    leaves = []
    for segment in plan.segments:
        slots = momentum[plan.num_slots * segment.start : plan.num_slots * segment.stop]
        rest = (slots.numpy(), *memory.remembered(segment, None))
        leaves.append(leaf_of(segment.index, anchor[segment.start : segment.stop].numpy(), rest))
    root = root_of(round_index, memory.digested_header(0), leaves)
    described = tuple(snapshots.hash_chunks(temporary / name) for name in names)
    segments = tuple((s.numel, leaf.whole.hex()) for s, leaf in zip(plan.segments, leaves, strict=True))
    hashes = (root.anchor_sha256.hex(), root.state_digest.hex())
    index = snapshots.SnapshotIndex(plan.run_id, round_index, *hashes, "", described, segments)
    snapshots.publish(temporary, directory, index)
