"""What crosses the network for a part on a node: its own bytes of each buffer, all of them over all parts, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dilocoxd.errors import StoreError
from dilocoxd.outerworker.away.moves import Moves, Stretch
from dilocoxd.outerworker.away.relay import Relay
from dilocoxd.outerworker.plan import HEADER_BYTES, OuterPlan, make_plan
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_parts import PartReady, PartStepped
from dilocoxd.wire.local.outer_worker import (
    ApplyResult,
    BaseCopied,
    ContributionFormed,
    CopyBase,
    FormContribution,
    OwnedSegment,
    PassReady,
    PreparePass,
    Reduce,
    SegmentReduced,
    Settle,
    Settled,
    Share,
)
from dilocoxd.wire.placement import OuterPart
from tests.harness.outer_worker.daemon_end import tiny_manifest

HASH = bytes(32)
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"strategy": {"codec": "int4"}},
    "low rank": {"strategy": {"codec": "int4", "transform": "lowrank", "lowrank_r": 2}},
    "clipped": {"strategy": {"codec": "int4"}, "aggregation": {"centered_clip": True}},
}


def plans(run: str, num_parts: int = 3) -> list[OuterPlan]:
    manifest = tiny_manifest(
        model={"num_layers": 1}, **{**RUNS[run], "strategy": {"segment_elements_max": 4096, **RUNS[run]["strategy"]}}
    )
    return [make_plan(manifest, OuterPart(i, num_parts, i, num_parts - i - 1)) for i in range(num_parts)]


def covered(found: list[list[Stretch]], name: str) -> list[tuple[int, int]]:
    """Stretches of a buffer over all parts, joined where they touch; each byte belongs to one."""
    places = sorted((each.first, each.stop) for own in found for each in own if each.name == name)
    joined: list[tuple[int, int]] = []
    for first, stop in places:
        assert not joined or first >= joined[-1][1], "no byte belongs to two parts"
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((first, stop))
    return joined


@pytest.mark.parametrize("run", RUNS)
def test_all_parts_together_move_whole_buffers_and_no_byte_twice(run: str) -> None:
    parts = plans(run)
    plan, moves = parts[0], [Moves(each) for each in parts]
    r = plan.schedule.start.lowrank_r
    values = [(0, 4 * plan.layout.numel)]
    form, passes = FormContribution(0, 1, r, is_check=True), plan.num_passes
    assert covered([each.before(form) for each in moves], local_buffers.PHASE) == values
    assert covered([each.after(CopyBase(0), BaseCopied(0, 1)) for each in moves], local_buffers.PHASE) == values
    stepped = PartStepped(0, 1, 0.0)
    moved = [each.after(ApplyResult(0, 0, "", 0, r), stepped) for each in moves]
    assert covered(moved, local_buffers.ANCHOR) == values
    memory = [(2 * HEADER_BYTES, plan.memory_total)] if plan.keeps_results or plan.clip_kappa else []
    assert covered(moved, local_buffers.MEMORY) == memory
    results = [(0, sum(map(sum, plan.payload_bytes_at(r))))]
    for request in (ApplyResult(0, 0, "", 0, r, is_check=True), Settle(0, 1, 0, True, ())):
        assert covered([each.before(request) for each in moves], local_buffers.RESULT) == results
    formed = ContributionFormed(0, 1, True, "", (), 0.0, 0.0, 0.0)
    sent = [each.after(form, formed) for each in moves]
    for number in range(1, passes):
        request = PreparePass(0, number, r)
        sent += [each.after(request, PassReady(0, number, ())) for each in moves]
    assert covered(sent, local_buffers.OUTBOX) == results, "over all passes"
    got = [each.before(PreparePass(0, number, r)) for number in range(1, passes + 1) for each in moves]
    assert covered(got, local_buffers.RESULT) == results


@pytest.mark.parametrize("run", RUNS)
def test_sum_of_a_segment_gets_its_shares_and_gives_its_result(run: str) -> None:
    plan = plans(run)[1]
    moves, r, last = Moves(plan), plan.schedule.start.lowrank_r, plan.num_passes - 1
    segment = plan.segments[0].index
    start, length = plan.payload_offsets_at(r)[last][segment], plan.payload_bytes_at(r)[last][segment]
    request = Reduce(0, last, segment, (Share(-1, 5), Share(2, 5)), r)
    before = moves.before(request)
    place = 2 * plan.payload_total + start
    assert before[0] == Stretch(local_buffers.INBOX, place, place + length), "its own it has"
    assert {each.name for each in before[1:]} <= {local_buffers.RESULT} and len(before) == 1 + last
    answer = SegmentReduced(0, last, segment, HASH, 0.0)
    assert moves.after(request, answer) == [Stretch(local_buffers.RESULT, start, start + length)]


def test_what_was_left_out_goes_to_the_trainers_and_last_what_says_so() -> None:
    """Only segments that were summed here, and only when somebody was left out."""
    parts = plans("plain", 2)
    numel, (first, second), foreign = parts[0].layout.numel, parts[1].segments[:2], parts[0].segments[0]
    owned = tuple(OwnedSegment(0, one.index, (Share(-1, 5), Share(0, 5))) for one in (second, foreign, first))
    moves, settled = Moves(parts[1]), Settled(0, 1)
    asked = Settle(0, 1, 0, True, owned, without=(1,))
    assert moves.after(asked, settled) == [
        *(Stretch(local_buffers.LEFT_OUT, 4 * one.start, 4 * one.stop) for one in (first, second)),
        Stretch(local_buffers.LEFT_OUT, 4 * numel + 64, 4 * numel + 128),
    ]
    assert moves.after(replace(asked, without=()), settled) == []
    assert moves.after(replace(asked, owned=()), settled)[:-1] == [], "the part says that nothing was counted there"


def test_checks_refusals_and_places_that_do_not_exist_move_nothing() -> None:
    plan = plans("plain")[1]
    moves = Moves(plan)
    assert moves.after(FormContribution(0, 1, 0, is_check=True), PartReady(0)) == []
    not_finite = ContributionFormed(0, 1, False, "w", (), 0.0, 0.0, 0.0)
    assert moves.after(FormContribution(0, 1, 0, is_check=True), not_finite) == []
    assert moves.before(Settle(0, 1, 0, False, ())) == []
    assert moves.before(ApplyResult(0, 0, "a file", 0, 0, is_check=True)) == []
    shares = (Share(plan.num_inbox_slots, 5),)
    assert moves.before(Reduce(0, 0, plan.segments[0].index, shares, 0)) == []
    assert moves.before(Reduce(0, 0, plan.num_segments, (Share(0, 5),), 0)) == []


def test_file_of_the_head_that_cannot_be_read_is_no_lost_connection(tmp_path: Path) -> None:
    """Nobody would be told, and the part be started again for ever."""
    nobody: Any = None
    sent: list[Any] = []
    link: Any = SimpleNamespace(send=sent.append)
    relay = Relay(nobody, link, plans("plain", 1)[0], Path("/there"))
    with pytest.raises(StoreError, match="reading for a node: Is a directory"):
        relay._send_file(tmp_path, "kept", ((0, 10),))
    assert [type(each).__name__ for each in sent] == ["MakeFile"]
