"""The benchmark of the headline: links of a cell, legs that are runs, rows of what was measured."""

from pathlib import Path

import pytest

from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import load_manifest
from dilocoxd.planner.footprint import footprint
from dilocoxd.store.rundir import open_run_dir
from tests.bench.headline.__main__ import loss_at, rows_of
from tests.bench.headline.ddp import DdpRun, steps_within
from tests.bench.headline.ground import HEADERS, Ground
from tests.bench.headline.legs import LEGS, LegRun, Length, found_leg, step_took_s
from tests.bench.headline.picture import draw
from tests.bench.headline.planned import planned_tokens_per_s
from tests.bench.headline.waits import ENDED, note, waited_s
from tests.harness.running.network_namespaces import Network

GROUND = Ground(2, 31.0, 0.1, 64, 2, 32)
LENGTH = Length(inner_steps=125, rounds=2, limit_s=1.0)
PARAMETERS = 1_000_000


def test_a_ring_takes_its_ratio_of_a_step_on_the_link() -> None:
    sent = 4 * PARAMETERS  # two sites: half of the vector to sum it, half to give it back
    assert 8 * sent / (HEADERS * GROUND.bit_per_s(PARAMETERS)) == pytest.approx(31 * 0.1)
    four = Ground(4, 31.0, 0.1, 64, 2, 32)
    assert four.bit_per_s(PARAMETERS) == pytest.approx(1.5 * GROUND.bit_per_s(PARAMETERS))


def test_ddp_makes_as_many_steps_as_there_is_time_for_but_one() -> None:
    assert steps_within(GROUND, 5, 100.0) == 5
    assert steps_within(GROUND, 5, 10.0) == 3
    assert steps_within(GROUND, 5, 0.1) == 1


@pytest.mark.parametrize("name", LEGS)
def test_every_leg_is_a_run_of_equal_models_and_batches(name: str, tmp_path: Path) -> None:
    leg = LEGS[name]
    members = found_leg(Network("unit", "ab"), leg, GROUND, LENGTH, tmp_path)
    first, second = (open_run_dir(member.run_dir).load()[0] for member in members)
    assert first == second
    assert (first.model.hidden_size, first.inner.batch_sequences) == (64, 2)
    assert first.strategy.inner_steps == (34 if name == "default" else 125)
    assert (first.strategy.delay == "none") == (name in ("diloco", "no overlap", "neither"))
    assert (first.strategy.codec == "fp32") == (name in ("no compression", "neither"))


def test_plan_of_a_leg_hides_an_exchange_that_fits_and_counts_one_that_is_waited_for(tmp_path: Path) -> None:
    """2 sites x 2 x 32 tokens in steps of 0.1 s are 1280 a second; `neither` waits as long again as it trains."""
    planned = {}
    for name in ("dilocox", "neither"):
        member = found_leg(Network("unit", "ab"), LEGS[name], GROUND, LENGTH, tmp_path)[0]
        payload = footprint(manifest := load_manifest(member.run_dir / "run.toml"), shape_of(manifest, None, 2))
        bit_per_s = 8 * payload.payload_bytes / 0.96 / 12.5
        planned[name] = planned_tokens_per_s(member.run_dir, GROUND, bit_per_s)
    assert planned["dilocox"] == pytest.approx(1280.0)
    assert planned["neither"] == pytest.approx(640.0, rel=0.01)


def test_rows_say_how_many_times_ddp_and_draw_a_picture(tmp_path: Path) -> None:
    ddp = DdpRun(PARAMETERS, 1e7, 0.02, (3.2, 3.2, 9.9), ((0.0, 6.0), (3.2, 5.9)))
    fast = LegRun(1240.0, 2, 10.0, 0.001, (34, 34, 35, 34), 1.0, 1000, ((0.0, 6.0), (5.0, 5.0), (20.0, 4.0)), 1280.0)
    slow = LegRun(20.0, 2, 10.0, 0.9, (34, 34), 1.0, 1000, ((0.0, 6.0), (6.0, 5.5)))
    rows = rows_of(GROUND, [(ddp, {"default": fast, "neither": slow})])
    base, quick, idle = rows
    assert (base["tokens_per_s"], base["steps_measured"], base["measured_ratio"]) == (40.0, 3, 31.0)
    assert (quick["times_ddp"], quick["goal"], quick["of_no_links"], quick["published"]) == (31.0, 31.0, 0.969, 32.0)
    assert quick["phase_steps"] == [34, 34, 35]
    assert quick["of_planned"] == 0.969
    assert (quick["loss_at_s"], quick["loss"], idle["loss"]) == (6.0, 5.0, 5.5)
    draw(rows, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").stat().st_size > 1000


def test_loss_at_a_time_is_the_newest_that_was_known() -> None:
    assert loss_at(((0.0, 6.0), (5.0, 5.0)), 4.9) == 6.0


def test_a_step_is_what_lies_between_two_losses_that_were_measured() -> None:
    losses = [(1.0, 0, 6.0), (9.0, 1, 6.0), (10.0, 2, 6.0), (10.1, 3, 6.0), (10.2, 4, 6.0), (10.5, 5, 6.0)]
    assert step_took_s(losses, 10.0) == pytest.approx(0.1)
    assert step_took_s(losses, 10.5) == 0.0


def test_waits_count_by_their_part_within_what_is_measured(tmp_path: Path) -> None:
    notes = tmp_path / "a.waits"
    assert waited_s(notes, 0.0, 10.0) == 0.0
    notes.write_text(
        "began 1.0\nended 12.0\n"  # from before the window
        "began 13.0\nended 13.5\n"
        "began 14.0\nbegan 15.0\nended 15.25\n"  # whose trainer died in it, and the next one
        "began 19.0\n"  # not over
    )
    assert waited_s(notes, 10.0, 20.0) == pytest.approx(2.0 + 0.5 + 0.25 + 1.0)
    assert waited_s(notes, 2.0, 3.0) == 1.0
    note(notes, ENDED)
    assert waited_s(notes, 20.0, 21.0) == pytest.approx(1.0)
