"""The cut of a pipeline by the speed of its places: the best of all there are, told when it is worth it, kept."""

import itertools
from pathlib import Path

import pytest

from dilocoxd.config.sections.schedules import SliceOrder
from dilocoxd.models import ModelConfig
from dilocoxd.models.cut import head_flops, layer_flops
from dilocoxd.trainer.parallel.measured_cut import (
    STEPS,
    STEPS_MIN,
    CutFile,
    PlaceCosts,
    StagePace,
    faster_layers,
    pipeline_seconds,
)
from dilocoxd.wire.local.trainer import UNKNOWN, StageTimes

MODEL = ModelConfig("native", 64, 32, 8, 2, 2, 64, 16)
ONE_EACH = SliceOrder("1f1b", 2)


def cuts(num_layers: int, num_slices: int) -> list[tuple[int, ...]]:
    """All there are."""
    ends = itertools.combinations(range(1, num_layers), num_slices - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *some, num_layers))) for some in ends]


@pytest.mark.parametrize(
    ("order", "layers"),
    [
        (ONE_EACH, (4, 4)),
        (SliceOrder("1f1b", 3), (4, 3, 2)),
        (SliceOrder("interleaved1f1b", 2, 2), (3, 3, 3, 2)),
        (SliceOrder("zbvzerobubble", 2, 2), (3, 3, 3, 1)),
    ],
)
@pytest.mark.parametrize("head", [0, 7, 25])
@pytest.mark.parametrize("slow", [1.0, 1.7, 5.0, 0.3])
def test_no_other_cut_has_a_faster_slowest_place(
    order: SliceOrder, layers: tuple[int, ...], head: int, slow: float
) -> None:
    costs = PlaceCosts(10, head, order)
    paces = [slow, *[1.0] * (order.ranks - 1)]

    def slowest(cut: tuple[int, ...]) -> float:
        return max(cost * pace for cost, pace in zip(costs.of(cut), paces, strict=True))

    seconds = [cost * pace for cost, pace in zip(costs.of(layers), paces, strict=True)]
    found = faster_layers(costs, layers, seconds)
    assert sum(found) == sum(layers)
    assert min(found) >= 1
    assert slowest(found) == pytest.approx(min(map(slowest, cuts(sum(layers), len(layers)))))


def test_slices_of_a_place_are_as_equal_as_they_can_be_and_the_head_has_the_smaller_one() -> None:
    costs = PlaceCosts(10, 5, SliceOrder("zbvzerobubble", 2, 2))
    assert faster_layers(costs, (2, 2, 2, 2), [20.0, 200.0]) == (3, 1, 1, 3)
    assert faster_layers(costs, (3, 2, 2, 2), [20.0, 200.0]) == (4, 1, 1, 3)


def test_a_pipeline_takes_its_slowest_place_and_a_piece_of_each_other() -> None:
    assert pipeline_seconds([3.0, 3.0], 3) == 4.0, "1f1b of 3 microbatches: 4 turns of a second"
    assert pipeline_seconds([3.0, 1.5], 3) == 3.5
    assert pipeline_seconds([3.0, 3.0], 6) == 3.5, "half as long in two slices each"


def pace_of(seconds: tuple[float, ...], step_s: float, layers: tuple[int, ...] = (4, 4)) -> StagePace:
    pace = StagePace(MODEL, SliceOrder("1f1b", len(seconds)), layers, 2)
    for _ in range(STEPS_MIN):
        pace.note(seconds, step_s)
    return pace


def times_of(layers: tuple[int, ...], paces: tuple[float, ...]) -> tuple[float, ...]:
    """Of devices that take so long for a unit of arithmetic."""
    costs = PlaceCosts(layer_flops(MODEL), head_flops(MODEL), SliceOrder("1f1b", len(layers)))
    return tuple(cost * pace for cost, pace in zip(costs.of(layers), paces, strict=True))


def test_a_slow_place_is_told_with_the_cut_that_helps_and_what_it_saves() -> None:
    before = times_of((4, 4), (1.0, 3.0))
    step_s = 1.1 * pipeline_seconds(before, 2)
    told = pace_of(before, step_s).told
    assert told is not None
    assert told.seconds == before
    assert told.layers == (6, 2), "a place that takes three times as long, and has the head"
    after = times_of(told.layers, (1.0, 3.0))
    assert told.saves == pytest.approx((pipeline_seconds(before, 2) - pipeline_seconds(after, 2)) / step_s)
    again = pace_of(after, 1.1 * pipeline_seconds(after, 2), told.layers).told
    assert again is not None
    assert (again.layers, again.saves) == ((), UNKNOWN), "with that cut there is nothing left to say"


def test_what_would_hardly_save_anything_is_not_told() -> None:
    seconds = times_of((4, 4), (1.0, 3.0))
    assert pace_of(seconds, 100 * sum(seconds)).told == StageTimes(seconds, (), UNKNOWN), "nearly all is something else"
    equal = times_of((4, 4), (1.0, 1.0))
    assert pace_of(equal, sum(equal)).told == StageTimes(equal, (), UNKNOWN)


def test_nothing_is_known_before_some_steps_and_a_step_that_was_disturbed_does_not_count() -> None:
    pace = StagePace(MODEL, ONE_EACH, (4, 4), 2)
    for _ in range(STEPS_MIN - 1):
        pace.note((1.0, 1.0), 2.0)
        assert pace.told is None
    for _ in range(STEPS_MIN - 4):
        pace.note((9.0, 1.0), 20.0)
    for _ in range(STEPS):
        pace.note((1.0, 1.0), 2.0)
        assert pace.told is not None
        assert (pace.told.seconds, pace.told.layers) == ((1.0, 1.0), ())


def test_places_that_took_no_time_say_nothing() -> None:
    told = pace_of((0.0, 1.0), 1.0).told
    assert told == StageTimes((0.0, 1.0), (), UNKNOWN)


def test_a_cut_that_is_worth_it_waits_for_the_next_start(tmp_path: Path) -> None:
    file = CutFile(tmp_path / "site" / "stage_cut.json", ())
    seconds = times_of((4, 4), (1.0, 3.0))
    pace = pace_of(seconds, pipeline_seconds(seconds, 2))
    pace.keep()
    assert not file.path.exists(), "this site did not ask for it"
    pace.file = file
    pace.keep()
    assert file.read((4, 4)) == (6, 2)
    # Worth telling, and not worth a start with other layers.
    little = pace_of(seconds, 5 * pipeline_seconds(seconds, 2))
    assert little.told is not None
    assert 0.05 <= little.told.saves < 0.1
    little.file = CutFile(tmp_path / "another.json", ())
    little.keep()
    assert not little.file.path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "7", '{"layers": [6, 2]}', '{"began": [], "layers": [6, 3]}', '{"began": [], "layers": [6, 1, 1]}',
        '{"began": [], "layers": [8, 0]}', '{"began": [], "layers": null}', '{"began": [4, 4], "layers": [6, 2]}',
        '{"began": [], "layers": [[6], 2]}',
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_this_site_counts_as_none(tmp_path: Path, text: str) -> None:
    file = CutFile(tmp_path / "stage_cut.json", ())
    assert file.read((4, 4)) == ()
    file.path.write_text(text, encoding="utf-8")
    assert file.read((4, 4)) == ()


def test_a_cut_that_began_with_other_layers_of_site_toml_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "stage_cut.json"
    CutFile(path, (5, 3)).write((6, 2))
    assert CutFile(path, (5, 3)).read((5, 3)) == (6, 2)
    assert CutFile(path, (4, 4)).read((4, 4)) == ()


def test_a_cut_that_was_measured_where_other_processes_have_the_slices_does_not_count(tmp_path: Path) -> None:
    """Four slices of four processes, and as a V of two: those of before lie on other devices."""
    path, layers = tmp_path / "stage_cut.json", (2, 2, 2, 2)
    CutFile(path, (), SliceOrder("1f1b", 4)).write((5, 1, 1, 1))
    assert CutFile(path, (), SliceOrder("1f1b", 4)).read(layers) == (5, 1, 1, 1)
    assert CutFile(path, (), SliceOrder("gpipe", 4)).read(layers) == (5, 1, 1, 1), "the same places"
    assert CutFile(path, (), SliceOrder("zbvzerobubble", 2, 2)).read(layers) == ()
