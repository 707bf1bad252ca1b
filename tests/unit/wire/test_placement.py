"""Segments are dealt to parts whole, once, in order, and evenly."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from dilocoxd.wire.layout import Segment
from dilocoxd.wire.placement import PARTS_MAX, OuterPart, place


def segments_of(lengths: list[int]) -> list[Segment]:
    ends = itertools.accumulate(lengths)
    return [Segment(index, end - lengths[index], end) for index, end in enumerate(ends)]


@given(st.lists(st.integers(1, 1 << 26), min_size=1, max_size=60), st.integers(1, PARTS_MAX))
def test_every_segment_is_dealt_once_in_consecutive_stretches(lengths: list[int], num_parts: int) -> None:
    segments = segments_of(lengths)
    dealt = place(segments, num_parts)
    assert len(dealt) == num_parts
    assert list(itertools.chain(*dealt)) == segments


@given(st.lists(st.integers(1, 1 << 26), min_size=1, max_size=60), st.integers(1, PARTS_MAX))
def test_no_part_has_more_than_its_share_and_one_segment(lengths: list[int], num_parts: int) -> None:
    for part in place(segments_of(lengths), num_parts):
        assert sum(segment.numel for segment in part) * num_parts <= sum(lengths) + num_parts * max(lengths)


@given(st.integers(1, 200), st.integers(1, PARTS_MAX))
def test_equal_segments_are_dealt_evenly(count: int, num_parts: int) -> None:
    sizes = [len(part) for part in place(segments_of([4096] * count), num_parts)]
    assert max(sizes) - min(sizes) <= 1


def test_one_part_is_everything() -> None:
    segments = segments_of([5, 7])
    assert place(segments, 1) == (tuple(segments),)


@pytest.mark.parametrize(
    "part", [OuterPart(), OuterPart(2, 3), OuterPart(63, 64), OuterPart(1, 3, before=1), OuterPart(1, 4, 1, 2)]
)
def test_a_part_is_read_back_as_it_is_written(part: OuterPart) -> None:
    assert OuterPart.parse(str(part)) == part


@pytest.mark.parametrize(
    "text", ["", "1", "3/3", "-1/3", "0/0", "0/65", "a/b", "0/3@1-3", "2/3@0-2", "1/3@0-4", "1/3@1"]
)
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        OuterPart.parse(text)


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 3), st.integers(0, 3))
def test_parts_of_a_machine_take_turns(count: int, here: int, before: int, after: int) -> None:
    on_machine = [OuterPart(before + place, before + here + after, before, after) for place in range(here)]
    dealt = [set(part.turn(range(7, 7 + count))) for part in on_machine]
    assert set().union(*dealt) == set(range(7, 7 + count))
    assert sum(map(len, dealt)) == count
