"""Rounds between real outer workers, with the test in the place of the daemons and the network."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from dilocoxd.outer.passes import SegmentPass, encode_pass
from dilocoxd.outerworker.plan import Plan
from dilocoxd.outerworker.tensor_file import anchor_entries, encode_header, momentum_entries
from dilocoxd.store import snapshots
from dilocoxd.wire import local
from dilocoxd.wire.local import (
    ApplyEntry,
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
from tests.harness.outer_daemon import OuterDaemon


@dataclass
class Site:
    """One site: its worker and the INBOX slot that each peer's payload takes there."""

    peer: str
    worker: OuterDaemon
    slots: dict[str, int] = dataclasses.field(default_factory=dict)


def form(site: Site, pseudo_gradient: torch.Tensor, phase: int) -> ContributionFormed:
    """What a trainer and its daemon do at a boundary: PHASE = u, FormContribution."""
    site.worker.write_floats(local.PHASE, pseudo_gradient)
    formed: ContributionFormed = site.worker.do(FormContribution, phase, 0)
    assert formed.is_finite
    return formed


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
    described = ordered[0].worker.described
    assert described is not None
    lowrank_r = lowrank_of(ordered[0])
    owned: dict[str, list[OwnedSegment]] = {site.peer: [] for site in ordered}
    offset = 0
    table = next(each for each in described.payloads if each.lowrank_r == lowrank_r)
    for pass_index, lengths in enumerate(table.payload_bytes):
        if pass_index:
            for site in ordered:
                site.worker.do(PreparePass, pass_index, lowrank_r)
        for segment, length in enumerate(lengths):
            owner = ordered[owners[segment % len(owners)]]
            shares = _collect(ordered, owner, (offset, length), tokens)
            shares = tuple(
                dataclasses.replace(share, age=ages.get(site.peer, 0), missing=missing)
                for share, site in zip(shares, ordered, strict=True)
            )
            owner.worker.do(Reduce, pass_index, segment, shares, lowrank_r)
            owned[owner.peer].append(OwnedSegment(pass_index, segment, shares))
            result = owner.worker.read(local.RESULT, offset, length)
            for site in ordered:
                site.worker.write(local.RESULT, result, offset)
            offset += length
    return {peer: tuple(items) for peer, items in owned.items()}


def lowrank_of(site: Site) -> int:
    """Low rank of the next entry, as the site's state says."""
    assert site.worker.described is not None
    if len(site.worker.described.payloads) == 1:
        return site.worker.described.payloads[0].lowrank_r
    ready: StateReady = site.worker.do(OpenState)
    return ready.lowrank_r


def _collect(ordered: Sequence[Site], owner: Site, piece: tuple[int, int], tokens: dict[str, int]) -> tuple[Share, ...]:
    """Bring one segment of everybody to its owner."""
    assert owner.worker.described is not None
    total = max(sum(map(sum, each.payload_bytes)) for each in owner.worker.described.payloads)
    shares = []
    for number, site in enumerate(ordered):
        slot = -1 if site is owner else owner.slots.get(site.peer, number)
        shares.append(Share(slot, tokens.get(site.peer, 1000)))
        if slot >= 0:
            owner.worker.write(local.INBOX, site.worker.read(local.OUTBOX, *piece), slot * total + piece[0])
    return tuple(shares)


def commit(
    sites: Sequence[Site], round_index: int, phase: int, owned: dict[str, tuple[OwnedSegment, ...]]
) -> list[StateReady]:
    """Settle (all included) and apply everywhere."""
    answers = []
    for site in sites:
        site.worker.do(Settle, phase, round_index, True, owned[site.peer])
        answers.append(site.worker.do(ApplyEntry, round_index, "", 0, lowrank_of(site)))
    return answers


def take_anchor(sites: Sequence[Site]) -> None:
    """CopyBase everywhere: a new phase starts from the present anchor."""
    for site in sites:
        site.worker.do(CopyBase)


def foreign_payload(plan: Plan, seed: int) -> bytes:
    """Payload of another site with a random pseudo-gradient."""
    values = torch.randn(plan.layout.numel, generator=torch.Generator().manual_seed(seed))
    payload = bytearray(plan.payload_total)
    view = memoryview(payload)
    for segment, start, length in zip(plan.segments, plan.payload_offsets[0], plan.payload_bytes[0], strict=True):
        d = values[segment.start : segment.stop].clone()
        encode_pass(SegmentPass(plan.transform, 0, segment), d, view[start : start + length])
    return bytes(payload)


def write_state(directory: Path, plan: Plan, round_index: int, anchor: torch.Tensor) -> None:
    """A snapshot with a chosen anchor and zero momentum, as another site could have written it."""
    temporary = snapshots.temporary_directory(directory)
    temporary.mkdir(parents=True)
    momentum = torch.zeros(plan.num_slots * plan.layout.numel)
    files = [
        (snapshots.ANCHOR_NAME, anchor_entries(plan), anchor),
        (snapshots.MOMENTUM_NAME, momentum_entries(plan), momentum),
    ]
    for name, entries, values in files[: 1 + (plan.num_slots > 0)]:
        (temporary / name).write_bytes(encode_header(entries, {}) + values.numpy().tobytes())
    anchor_sha256 = _sha256(anchor.numpy().tobytes())
    digest = _sha256(anchor_sha256 + _sha256(momentum.numpy().tobytes()))
    described = tuple(snapshots.hash_chunks(temporary / name) for name, _, _ in files[: 1 + (plan.num_slots > 0)])
    index = snapshots.SnapshotIndex(plan.run_id, round_index, anchor_sha256.hex(), digest.hex(), "", described)
    snapshots.publish(temporary, directory, index)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
