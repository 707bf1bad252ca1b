"""Outer parts together do what one outer worker does: the same bits in every answer, buffer and file."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dilocoxd.errors import WorkerError
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store import snapshots
from dilocoxd.store.tensor_header import encode_header, read_header
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    ContributionFormed,
    CopyBase,
    FormContribution,
    LoadState,
    OpenState,
    OwnedSegment,
    PreparePass,
    Reduce,
    RestoreSite,
    SaveSite,
    Settle,
    Share,
    StateReady,
    WriteSnapshot,
)
from dilocoxd.wire.local.worker import WorkerFailed
from tests.harness.outer_worker.daemon_end import OuterDaemon, tiny_manifest
from tests.harness.outer_worker.in_parts import Crash, InnerParts
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.swarm import Site, commit, exchange, foreign_payload, form, lowrank_of

ROUNDS = 10
JOURNAL_WRITES_MIN = 20
"""Of one part in the scenario of the kills; fewer would mean that something is not journalled."""
SMALL = {"num_layers": 1}
WIDE = SMALL | {"vocab_size": 1024}
"""Its embedding is cut into segments of several parts."""
NAMES = ("Qma", "Qmb")
TOKENS = {"Qma": 100, "Qmb": 150}
OWNERS = ((0,), (0, 1), (1, 0), (1,))
LOW_RANK = {"transform": "lowrank", "lowrank_r": 8, "codec": "int4"}
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "fp32": {"strategy": {"codec": "fp32"}},
    "fp16": {"strategy": {"codec": "fp16"}},
    "int8-paper": {"strategy": {"codec": "int8", "error_feedback": "paper"}},
    "int4": {"strategy": {"codec": "int4"}},
    "int2": {"model": WIDE, "strategy": {"codec": "int2"}},
    "e3m0": {"strategy": {"codec": "e3m0"}},
    "topk": {"strategy": {"codec": "topk"}},
    "centered": {"strategy": {"codec": "int4"}, "aggregation": {"centered_clip": True}},
    "unclipped-adam": {
        "strategy": {"codec": "int4"},
        "aggregation": {"norm_clip": False},
        "outer": {"optimizer": "adam", "lr": 0.01},
    },
    "lowrank": {"strategy": LOW_RANK},
    "adaptive": {"strategy": LOW_RANK, "schedule": {"kind": "adaptive", "window": 2, "energy_left": 0.5}},
    "mask": {"strategy": {"transform": "mask", "mask_keep_one_in": 8, "codec": "int8"}},
    "streaming": {"strategy": {"delay": "streaming", "fragments": 3, "codec": "e3m0", "error_feedback": "none"}},
}


def make_site(name: str, changes: dict[str, dict[str, Any]], num_parts: int, nodes: Sequence[int] = ()) -> Site:
    manifest = tiny_manifest(**{"model": SMALL} | changes)
    is_one = num_parts == 1
    worker: OuterDaemon = InnerWorker(make_plan(manifest)) if is_one else InnerParts(manifest, num_parts, nodes=nodes)
    worker.do(LoadState, "")
    return Site(name, worker)


def update(name: str, index: int, numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(1000 * index + ord(name[-1])))


def told(answer: Any) -> Any:
    """Without what differs from one run to the next."""
    return dataclasses.replace(answer, request=0, seconds=0.0)


def history(
    changes: dict[str, dict[str, Any]], num_parts: int, rounds: int, nodes: Sequence[int] = ()
) -> tuple[list[Any], list[Site]]:
    """All answers and payloads of two sites over some rounds."""
    sites = [make_site(name, changes, num_parts, nodes) for name in NAMES]
    seen: list[Any] = []
    for index in range(rounds):
        for site in sites:
            numel = site.worker.described.numel  # type: ignore[union-attr]
            formed = form(site, update(site.peer, index, numel), index)
            assert isinstance(formed, ContributionFormed)
            seen.append(told(formed))
        owned = exchange(sites, OWNERS[index % len(OWNERS)], TOKENS)
        for site in sites:
            num_passes = len(site.worker.described.payload_bytes)  # type: ignore[union-attr]
            site.worker.do(PreparePass, num_passes, lowrank_of(site))
        seen += [site.worker.read(name) for site in sites for name in (local_buffers.OUTBOX, local_buffers.RESULT)]
        for ready in commit(sites, index, index, owned):
            assert isinstance(ready, StateReady)
            seen.append(told(ready))
        for site in sites:
            site.worker.do(CopyBase)
    return seen, sites


def buffers_of(site: Site) -> dict[str, bytes]:
    """All that is not each part's own."""
    # LEFT_OUT has a mark of each part at its end (ADR 39).
    own = (local_buffers.UNDO, local_buffers.JOURNAL, local_buffers.LEFT_OUT)
    return {b.name: site.worker.read(b.name) for b in site.worker.described.buffers if b.name not in own}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_parts_gives_the_bits_of_one(kind: str) -> None:
    """1, 3 and 8 parts, some of them empty: states, payloads, norms, residuals, schedules, all buffers. The 3 are on a
    machine each, and know nothing of each other's buffers."""
    expected, (one, *_) = history(KINDS[kind], 1, ROUNDS)
    for num_parts, nodes in ((3, (1, 1, 1)), (8, (8,))):
        seen, (site, *_) = history(KINDS[kind], num_parts, ROUNDS, nodes)
        assert seen == expected
        assert buffers_of(site) == buffers_of(one)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("kind", ["int2", "centered", "adaptive"])
def test_files_are_those_of_one_and_are_read_by_any_number_of_parts(kind: str, tmp_path: Path) -> None:
    """Snapshot, and error feedback with a contribution in flight: written by 1 and 3 parts, read by 3 and 1."""
    for num_parts, folder in ((1, tmp_path / "one"), (3, tmp_path / "parts")):
        _, (site, *_) = history(KINDS[kind], num_parts, 3, (num_parts,))
        site.worker.write_snapshot(folder / "snapshot")  # type: ignore[attr-defined]
        form(site, update("z", 0, site.worker.described.numel), 3)  # type: ignore[union-attr]
        site.worker.do(SaveSite, str(folder / "feedback"), 2)
    assert files_of(tmp_path / "parts" / "snapshot") == files_of(tmp_path / "one" / "snapshot")
    held = []
    for num_parts, writer in ((1, "parts"), (3, "one"), (3, "parts")):
        site, file = make_site("Qma", KINDS[kind], num_parts, (num_parts,)), str(tmp_path / writer / "feedback")
        ready = site.worker.do(LoadState, str(tmp_path / "parts" / "snapshot"))
        assert site.worker.do(RestoreSite, file, 2).is_restored
        assert not site.worker.do(RestoreSite, file, 7).is_restored
        assert not any(site.worker.read(local_buffers.FEEDBACK))
        assert site.worker.do(RestoreSite, file, 2).is_restored
        names = (local_buffers.FEEDBACK, local_buffers.OWNER_FEEDBACK, local_buffers.OUTBOX, local_buffers.ANCHOR)
        held.append((told(ready), *map(site.worker.read, names)))
    assert held[0] == held[1] == held[2]
    assert any(held[0][1]) and any(held[0][2])


@pytest.mark.parametrize("kind", ["int2", "adaptive"])
def test_each_machine_has_a_feedback_file_of_its_own(kind: str, tmp_path: Path) -> None:
    """Read by the same machines it is what one worker saved; where one is gone, its segments alone start at zero."""
    names = (local_buffers.FEEDBACK, local_buffers.OWNER_FEEDBACK, local_buffers.OUTBOX)
    held = []
    for num_parts, nodes in ((1, ()), (3, (2, 1))):
        _, (site, *_) = history(KINDS[kind], num_parts, 3, nodes)
        form(site, update("z", 0, site.worker.described.numel), 3)  # type: ignore[union-attr]
        folder = tmp_path / str(num_parts)
        site.worker.do(SaveSite, str(folder / "feedback"), 2)
        site.worker.write_snapshot(folder / "snapshot")  # type: ignore[attr-defined]
        again = make_site("Qma", KINDS[kind], num_parts, nodes)
        again.worker.do(LoadState, str(folder / "snapshot"))
        restored = again.worker.do(RestoreSite, str(folder / "feedback"), 2)
        assert (restored.is_restored, restored.detail, restored.missing) == (True, "", 0)
        held.append([again.worker.read(name) for name in names])
        included = again.worker.do(RestoreSite, str(folder / "feedback"), 3)
        held[-1] += [dataclasses.replace(included, request=0), again.worker.read(local_buffers.FEEDBACK)]
        assert included.is_restored or kind == "adaptive", "three passes: what it left is unknown"
    assert held[0] == held[1] and any(held[0][0])
    assert any(held[0][2]) or kind == "adaptive", "whose first pass sends nothing"
    parts, file = again.worker, tmp_path / "3" / "feedback"
    other, numel = file.parent / "node1" / "feedback", again.worker.described.numel  # type: ignore[union-attr]
    assert other.stat().st_size >= 4 * numel, "its places are those of the whole"
    other.unlink()
    restored = parts.do(RestoreSite, str(file), 2)
    feedback = parts.floats(local_buffers.FEEDBACK)
    assert restored.is_restored and 0 < restored.missing < numel
    assert restored.detail == f"{restored.missing} of {numel} values start at zero"
    assert not feedback[numel - restored.missing :].any()
    assert feedback[: numel - restored.missing].numpy().tobytes() == held[0][0][: 4 * (numel - restored.missing)]
    file.unlink()
    assert not parts.do(RestoreSite, str(file), 2).is_restored
    assert not any(parts.read(local_buffers.FEEDBACK))


@pytest.mark.parametrize("held", ["[]", '{"feedback": [[8, 4]]}', '{"feedback": [[0, 1000000]]}', "{"])
def test_feedback_file_that_says_nonsense_of_what_it_holds_is_not_used(held: str, tmp_path: Path) -> None:
    site = make_site("Qma", KINDS["int4"], 1)
    path = tmp_path / "feedback"
    site.worker.do(SaveSite, str(path), 0)
    offset, entries, metadata = read_header(path)
    path.write_bytes(encode_header(entries, metadata | {"held": held}) + path.read_bytes()[offset:])
    restored = site.worker.do(RestoreSite, str(path), 0)
    assert not restored.is_restored and "hold" in restored.detail


def laid_over(folder: Path, nodes: Sequence[int]) -> dict[str, bytes]:
    """The files of each machine put together: a byte that is zero in all but one is that one's."""
    folders = [folder, *(folder.parent / f"node{node}" / folder.name for node in range(1, len(nodes)))]
    laid = dict[str, bytes]()
    for name, first in files_of(folder).items():
        others = [(each / name).read_bytes() for each in folders[1:]]
        assert {len(other) for other in others} == {len(first)}
        laid[name] = bytes(np.bitwise_or.reduce([np.frombuffer(data, np.uint8) for data in (first, *others)]))
    return laid


@pytest.mark.parametrize("kind", ["int2", "centered", "adaptive"])
@pytest.mark.parametrize("chunk_bytes", [1 << 12, 1 << 22])
def test_each_machine_has_its_part_of_a_snapshot(
    kind: str, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid over each other the files are those of one worker, and each machine reads its own. Chunks: of which some
    machine has most whole, and larger than the files."""
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", chunk_bytes)
    _, (one, *_) = history(KINDS[kind], 1, 3)
    one.worker.write_snapshot(tmp_path / "one")  # type: ignore[attr-defined]
    for nodes in ((2, 1), (1, 1, 1)):
        _, (site, *_) = history(KINDS[kind], 3, 3, nodes)
        folder = tmp_path / f"{len(nodes)}" / "snapshot"
        site.worker.write_snapshot(folder)  # type: ignore[attr-defined]
        assert laid_over(folder, nodes) == files_of(tmp_path / "one")
        again = make_site("Qma", KINDS[kind], 3, nodes)
        loaded, held = again.worker.do(LoadState, str(folder)), site.worker.do(OpenState)
        assert (loaded.round, loaded.state_digest) == (held.round, held.state_digest)
        for name in (local_buffers.ANCHOR, local_buffers.MOMENTUM):
            assert again.worker.read(name) == one.worker.read(name)


@pytest.mark.parametrize(("nodes", "folder"), [((3,), "snapshot"), ((2, 1), "node1/snapshot")])
def test_damaged_snapshot_changes_nothing_in_any_part(nodes: tuple[int, ...], folder: str, tmp_path: Path) -> None:
    """On two machines the chunk is one that neither has whole."""
    _, (site, *_) = history(KINDS["int2"], 3, 1, nodes)
    site.worker.write_snapshot(tmp_path / "snapshot")  # type: ignore[attr-defined]
    before, state = buffers_of(site), site.worker.do(OpenState)
    path = tmp_path / folder / "anchor.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused = site.worker.ask(LoadState, str(tmp_path / "snapshot"))
    assert isinstance(refused, WorkerFailed) and refused.kind == "corrupt_snapshot" and "chunk 0" in refused.detail
    assert buffers_of(site) == before
    assert site.worker.do(OpenState) == state


def test_header_that_one_machine_has_otherwise_is_no_state(tmp_path: Path) -> None:
    """The index knows the first machine's; what another would train after must be the same."""
    _, (site, *_) = history(KINDS["adaptive"], 3, 1, (2, 1))
    site.worker.write_snapshot(tmp_path / "snapshot")  # type: ignore[attr-defined]
    path = tmp_path / "node1" / "snapshot" / snapshots.MEMORY_NAME
    data = path.read_bytes()
    changed = data.replace(b'"shared_steps":10', b'"shared_steps":11')
    assert changed != data
    path.write_bytes(changed)
    refused = site.worker.ask(LoadState, str(tmp_path / "snapshot"))
    assert isinstance(refused, WorkerFailed) and refused.kind == "corrupt_snapshot" and "header" in refused.detail


def test_what_one_part_cannot_form_or_apply_no_part_does() -> None:
    _, (site, *_) = history(KINDS["int2"], 3, 1)
    numel = site.worker.described.numel  # type: ignore[union-attr]
    values = update("Qma", 5, numel)
    values[-1] = torch.nan
    site.worker.write_floats(local_buffers.PHASE, values)
    before = buffers_of(site)
    formed = site.worker.do(FormContribution, 1, 0)
    assert (formed.is_finite, formed.detail) == (False, "lm_head.weight")
    assert buffers_of(site) == before
    form(site, update("Qma", 5, numel), 1)
    site.worker.write(local_buffers.RESULT, b"\xff" * 64, len(site.worker.read(local_buffers.RESULT)) - 64)
    anchor = site.worker.read(local_buffers.ANCHOR)
    for request in ((ApplyResult, 1, "", 0, 0), (PreparePass, 1, 0)):
        refused = site.worker.ask(*request)
        assert isinstance(refused, WorkerFailed) and refused.kind == "bad_payload"
    assert site.worker.read(local_buffers.ANCHOR) == anchor


def test_a_check_looks_anew_at_what_an_earlier_one_found_right(tmp_path: Path) -> None:
    """The first time another part refused, so that nothing came of it; what this one would do is another thing now."""
    _, (site, *_) = history(KINDS["int2"], 3, 1)
    numel = site.worker.described.numel  # type: ignore[union-attr]
    for place, culprit in ((-1, "lm_head.weight"), (0, "model.embed_tokens.weight")):
        values = update("Qma", 5, numel)
        values[place] = torch.nan
        site.worker.write_floats(local_buffers.PHASE, values)
        formed = site.worker.do(FormContribution, 1, 0)
        assert (formed.is_finite, formed.detail) == (False, culprit)
    form(site, update("Qma", 5, numel), 1)
    sound = site.worker.read(local_buffers.RESULT)
    for damaged in (sound[:-64] + b"\xff" * 64, b"\xff" * 64 + sound[64:]):
        site.worker.write(local_buffers.RESULT, damaged)
        refused = site.worker.ask(ApplyResult, 1, "", 0, 0)
        assert isinstance(refused, WorkerFailed) and refused.kind == "bad_payload"


def test_no_snapshot_is_written_of_a_state_that_only_some_parts_have_come_to(tmp_path: Path) -> None:
    """It had its turn between the death of a part over an entry and the repetition of that entry."""
    _, (site, *_) = history(KINDS["int2"], 3, 1)
    worker = site.worker
    assert isinstance(worker, InnerParts)
    form(site, update("Qma", 5, worker.described.numel), 1)
    worker.crash(2, Crash("before", 2))
    with pytest.raises(WorkerError):
        asyncio.run(worker.together.ask(ApplyResult(worker.number(), 1, "", 0, 0)))
    assert worker.deaths
    folder = tmp_path / "snapshot"
    refused = worker.ask(WriteSnapshot, str(folder))
    assert isinstance(refused, WorkerFailed) and refused.kind == "busy"
    assert not [path for path in tmp_path.rglob("*") if path.name not in ("node1", "node2")]
    assert worker.do(ApplyResult, 1, "", 0, 0).round == 2
    assert worker.write_snapshot(folder).round == 2
    assert worker.do(LoadState, str(folder)).round == 2


MACHINES = ((3,), (2, 1), (1, 1, 1))
"""How many parts each has, by the part that is killed."""


def killed(folder: Path, part: int, crash: Crash) -> tuple[list[Any], int]:
    """A contribution that is settled as included, and one that is not; entries from RESULT and from a file; a snapshot
    that is loaded. What is left of all of it, and how many deaths it took."""
    manifest = tiny_manifest(model=SMALL, strategy={"segment_elements_max": 4096})
    plan, seen = make_plan(manifest), []
    folder.mkdir()
    worker = InnerParts(manifest, 3, {part: crash}, MACHINES[part])
    worker.do(LoadState, "")
    for index in range(2):
        worker.do(CopyBase)
        worker.write_floats(local_buffers.PHASE, update("Qma", index, plan.layout.numel))
        seen.append(told(worker.do(FormContribution, index, 0)))
        worker.write(local_buffers.INBOX, foreign_payload(plan, index))
        shares, owned = (Share(0, 300), Share(-1, 500)), []
        for segment in range(len(plan.segments)):
            seen.append(told(worker.do(Reduce, 0, segment, shares, 0)))
            owned.append(OwnedSegment(0, segment, shares))
        result, path = worker.read(local_buffers.RESULT), ""
        worker.do(Settle, index, index, not index, tuple(owned) if not index else (), 1)
        if index:
            path = str(folder / "payload")
            Path(path).write_bytes(b"before" + result)
        seen.append(told(worker.do(ApplyResult, index, path, 6 if index else 0, 0)))
        worker.write_snapshot(folder / str(index))
    seen.append(files_of(folder / "1"))
    seen.append(told(worker.do(LoadState, str(folder / "0"))))
    # Whoever dies when it has formed does not give PHASE back: its pages are idle until the next CopyBase.
    own = (local_buffers.UNDO, local_buffers.JOURNAL, local_buffers.PHASE, local_buffers.LEFT_OUT)
    seen += [worker.read(buffer.name) for buffer in plan.described().buffers if buffer.name not in own]
    worker.close()
    return seen, worker.deaths


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_killed_at_any_journal_write_gives_the_undisturbed_bits(part: int, tmp_path: Path) -> None:
    expected, _ = killed(tmp_path / "calm", part, Crash("before", 0))
    number, deaths = 1, 1
    while deaths:
        side = ("before", "after")[(number + part) % 2]
        seen, deaths = killed(tmp_path / str(number), part, Crash(side, number))
        assert seen == expected, (side, number)
        number += 1
    assert number > JOURNAL_WRITES_MIN
