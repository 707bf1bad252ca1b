"""Rounds by formula: who waits, who is extended; the loss of the study's rows; quantities as people write them."""

import doctest

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.machines.exchange import cost
from dilocoxd.machines.exchange.cost import ExchangeWork, Link, bytes_each_way, exchange_cost
from dilocoxd.planner import loss, pace as pace_module, processors, quantities
from dilocoxd.planner.loss import StudyRow, loss_gap_percent
from dilocoxd.planner.pace import Cadence, pace
from dilocoxd.planner.processors import parse_gpus
from dilocoxd.planner.quantities import parse_rates, parse_time


@pytest.mark.parametrize("module", [cost, loss, pace_module, processors, quantities])
def test_examples_of(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted > 0
    assert found.failed == 0


def test_without_delay_trainers_wait_for_the_whole_exchange() -> None:
    one = pace(Cadence(20, 50, 0.5, 5.0, "none"))
    assert (one.round_s, one.idle_s, one.steps) == (15.0, 5.0, 20)
    assert one.utilisation == pytest.approx(2 / 3)


def test_an_exchange_shorter_than_a_phase_costs_no_time() -> None:
    one = pace(Cadence(20, 50, 0.5, 9.99, "arrival"))
    assert (one.round_s, one.idle_s, one.steps, one.utilisation) == (10.0, 0.0, 20, 1.0)


def test_a_longer_exchange_first_extends_the_phase_and_then_idles() -> None:
    extended = pace(Cadence(20, 50, 0.5, 15.2, "arrival"))
    assert (extended.steps, extended.idle_s) == (31, 0.0)
    idle = pace(Cadence(20, 50, 0.5, 40.0, "arrival"))
    assert (idle.steps, idle.round_s, idle.idle_s) == (70, 40.0, 5.0)


STUDY = {
    "int4 0.05": (StudyRow("arrival", "int4", "identity", "adamw", 20, 0.05), 0.88),
    "int4 0.2": (StudyRow("arrival", "int4", "identity", "adamw", 20, 0.2), 1.00),
    "int4 0.5": (StudyRow("arrival", "int4", "identity", "adamw", 20, 0.5), 1.39),
    "int4 1": (StudyRow("arrival", "int4", "identity", "adamw", 20, 1.0), 1.84),
    "diloco": (StudyRow("none", "fp32", "identity", "adamw", 20, 0.0), 0.83),
    "default": (StudyRow("arrival", "int2", "identity", "muon", 34, 0.2), 0.82),
    "default-adamw": (StudyRow("arrival", "int2", "identity", "adamw", 34, 0.2), 1.26),
    "dilocox": (StudyRow("phase", "int4", "lowrank", "adamw", 20, 0.2), 2.60),
    "dilocox-eager": (StudyRow("eager", "int4", "identity", "adamw", 20, 0.2), 1.60),
    "streaming": (StudyRow("streaming", "e3m0", "identity", "adamw", 20, 0.2), 2.08),
    "sparseloco": (StudyRow("none", "topk", "identity", "adamw", 20, 0.0), 3.55),
}
"""Medians of docs/benchmarks.md, Convergence."""
POINTS = 0.25


@pytest.mark.parametrize("row", STUDY)
def test_row_of_the_study_is_met(row: str) -> None:
    choice, measured = STUDY[row]
    assert loss_gap_percent(choice) == pytest.approx(measured, abs=POINTS)


def test_bytes_are_those_of_reduce_scatter_and_gather() -> None:
    assert bytes_each_way(100, 2) == 100
    assert bytes_each_way(100, 4) == 150
    assert bytes_each_way(100, 1) == 0


def test_one_site_exchanges_nothing() -> None:
    assert exchange_cost(ExchangeWork(1000, 1000, 1, 1, "int4", 1), Link(1e6, 1e6, 1.0)).total_s == 0


def test_parts_of_an_exchange_of_the_papers_scale() -> None:
    """SCALE's figures for 1B: int2 encodes in 8.1 s, int4 in 1.0 s; 0.53 GB at 100 Mbit/s and 8 sites take 80 s."""
    payload = 265_625_000
    parts = exchange_cost(ExchangeWork(10**9, payload, 954, 1, "int2", 8), Link(1e8, 1e8, 0.0))
    assert parts.encode_s == pytest.approx(8.1, abs=0.1)
    assert parts.transfer_s == pytest.approx(2 * payload * 7 / 8 * 8 / 1e8 / 0.96)
    assert exchange_cost(ExchangeWork(10**9, payload, 954, 1, "int4", 8), Link(1e8, 1e8, 0.0)).encode_s < 1.0


def test_round_trips_grow_with_passes_and_are_half_where_everything_is_gathered() -> None:
    link = Link(1e12, 1e12, 0.1)

    def latency(segments: int, passes: int, sites: int, *, is_gathered: bool = False) -> float:
        return exchange_cost(ExchangeWork(1000, 1000, segments, passes, "int4", sites, is_gathered), link).latency_s

    assert latency(1, 1, 2) == pytest.approx(0.47)  # contributions, then results
    assert latency(480, 1, 4) == pytest.approx(0.47), "segments go behind each other without waiting for answers"
    assert latency(48, 3, 2) == pytest.approx(3 * 0.47)
    assert latency(48, 1, 4, is_gathered=True) == pytest.approx(0.235)


MEASURED = {(1000, 0.1): 0.725, (100, 0.0): 0.636, (200, 0.1): 0.830}
"""Seconds of `python -m tests.bench.links.predicted` by Mbit/s and round trip: 10.5M parameters, int4, two sites."""


@pytest.mark.parametrize("link", MEASURED)
def test_measured_exchanges_are_within_a_tenth(link: tuple[int, float]) -> None:
    mbit, rtt_s = link
    work = ExchangeWork(10_490_000, 5_420_000, 49, 1, "int4", 2)
    predicted = exchange_cost(work, Link(mbit * 1e6, mbit * 1e6, rtt_s)).exchange_s
    assert predicted == pytest.approx(MEASURED[link], rel=0.1)


@pytest.mark.parametrize("text", ["", "fast", "100X", "100M/1G/1G", "0M", "-5M", "1e3M"])
def test_links_nobody_can_mean_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--link .* cannot be read; write"):
        parse_rates(text)


def test_links_as_people_write_them() -> None:
    assert parse_rates("100M") == parse_rates("100Mbit/s") == parse_rates("100Mbps") == (1e8, 1e8)
    assert parse_rates("20M/1G") == (2e7, 1e9)


@pytest.mark.parametrize("text", ["", "80", "ms", "80 min", "-1ms"])
def test_times_without_unit_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rtt .* write a number with ms or s"):
        parse_time("--rtt", text)


@pytest.mark.parametrize("text", ["", "A100", "0xA100", "8xZ80", "8xA100:", "8xA100:x"])
def test_unknown_gpus_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="known names: V100"):
        parse_gpus(text)
