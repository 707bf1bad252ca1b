"""Rounds by formula: who waits, who is extended; the loss of the study's rows; quantities as people write them."""

import doctest
from dataclasses import replace

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.machines.exchange import cost
from dilocoxd.machines.exchange.cost import FIXED_S, SEGMENT_S, ExchangeWork, Link, bytes_each_way, exchange_cost
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
    """1B: int2 encodes in 2.5 s by torch and 0.8 s by compiled loops; 0.53 GB at 100 Mbit/s and 8 sites take 80 s."""
    payload, link = 265_625_000, Link(1e8, 1e8, 0.0)
    work = ExchangeWork(10**9, payload, 954, 1, "int2", 8)
    by_torch, compiled = exchange_cost(work, link), exchange_cost(replace(work, is_compiled=True), link)
    assert by_torch.encode_s == pytest.approx(2.5, abs=0.1)
    assert compiled.encode_s == pytest.approx(0.84, abs=0.05)
    assert by_torch.transfer_s == compiled.transfer_s == pytest.approx(2 * payload * 7 / 8 * 8 / 1e8 / 0.96)
    for parts in (exchange_cost(replace(work, codec="fp32", is_compiled=one), link) for one in (False, True)):
        assert parts.encode_s == pytest.approx(0.92), "without loops of its own"


def latency_s(work: ExchangeWork, bit_per_s: float = 1e12) -> float:
    return exchange_cost(work, Link(bit_per_s, bit_per_s, 0.1)).latency_s


def test_round_trips_grow_with_passes_and_are_half_where_everything_is_gathered() -> None:
    work = ExchangeWork(1000, 1000, 1, 1, "int4", 2)
    assert latency_s(work) == pytest.approx(0.15, abs=1e-3)  # contributions, then results
    many = latency_s(replace(work, num_segments=480))
    assert many == pytest.approx(0.15 - 480 * SEGMENT_S / 2, abs=1e-3), "none waits for the answer to another"
    assert latency_s(replace(work, num_passes=3)) == pytest.approx(0.45, abs=1e-3)
    assert latency_s(replace(work, num_sites=4, is_gathered=True)) == pytest.approx(0.075)


def test_round_trips_are_hidden_while_the_line_is_busy() -> None:
    """Results of the first segments are under way while the line still carries contributions."""
    work = ExchangeWork(1000, 96_000, 1, 1, "int4", 2)
    assert latency_s(work, 8e6) == pytest.approx(0.15 - 0.05), "0.1 s of line: half of it hides a part"
    assert latency_s(work, 8e5) == pytest.approx(0.075), "1 s of line: only its ends wait"


def test_segments_are_summed_while_the_line_brings_others() -> None:
    """100M parameters in 100 segments: the shorter of line and sums is hidden, but for one segment of it."""
    work, quiet = ExchangeWork(10**8, 10**8, 100, 1, "fp32", 2), Link(1e15, 1e15, 0.0)
    computed_s = exchange_cost(work, quiet).exchange_s - FIXED_S
    slow = exchange_cost(work, Link(1e8, 1e8, 0.0))
    assert slow.exchange_s == pytest.approx(slow.transfer_s + FIXED_S + computed_s / 100)
    fast = exchange_cost(work, Link(1e11, 1e11, 0.0))
    assert fast.exchange_s == pytest.approx(computed_s + FIXED_S + fast.transfer_s / 100, rel=1e-4)
    alone = exchange_cost(replace(work, num_segments=1), Link(1e8, 1e8, 0.0))
    assert alone.hidden_s == 0, "a single segment is summed when it is here"


MEASURED = {(4_000, 2, 0.0): 0.012, (4_000, 2, 0.1): 0.165}
"""Seconds of an exchange on a quiet machine by payload, segments and round trip (docs/lab/measured.md, fixed-cost)."""
CLOCK_S = 0.004
"""Of a row of milliseconds, and of two event loops."""


@pytest.mark.parametrize("cell", MEASURED)
def test_measured_exchanges_are_within_a_tenth(cell: tuple[int, int, float]) -> None:
    payload, num_segments, rtt_s = cell
    predicted = exchange_cost(ExchangeWork(1000, payload, num_segments, 1, "int4", 2), Link(1e12, 1e12, rtt_s))
    assert predicted.exchange_s == pytest.approx(MEASURED[cell], rel=0.1, abs=CLOCK_S)


@pytest.mark.parametrize("text", ["", "fast", "100X", "100M/1G/1G", "-5M", "1e3M"])
def test_links_nobody_can_mean_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--link .* cannot be read; write"):
        parse_rates(text)


def test_links_as_people_write_them() -> None:
    assert (
        parse_rates("100M")
        == parse_rates("100 Mbit/s")
        == parse_rates("100Mbit/s")
        == parse_rates("100Mbps")
        == (1e8, 1e8)
    )
    assert parse_rates("20M/1G") == (2e7, 1e9)


@pytest.mark.parametrize("text", ["0", "0M", "100", "0.5k", "100M/100", "99999999G", "9" * 400])
def test_links_without_a_unit_or_beyond_all_links_are_refused_with_their_rate(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--link .* says .* bit/s; give 1k to 10000G"):
        parse_rates(text)


@pytest.mark.parametrize("text", ["80s", "10001ms", "0ms", "9" * 400 + "s"])
def test_times_that_nobody_has_are_refused_with_the_range(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rtt .* is out of range; give 1 ms to 10 s"):
        parse_time("--rtt", text, 1e-3, 10.0)


@pytest.mark.parametrize("text", ["0xA100", "65537xA100", "9" * 5000 + "xA100", "8xA100:" + "9" * 5000, "\u0663xA100"])
def test_numbers_of_gpus_that_no_site_has_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read; write NUMBERxNAME like 8xA100, at most 65536"):
        parse_gpus(text)


@pytest.mark.parametrize("text", ["", "80", "ms", "80 min", "-1ms"])
def test_times_without_unit_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rtt .* write a number with ms or s"):
        parse_time("--rtt", text, 0, 10)


@pytest.mark.parametrize("text", ["", "A100", "0xA100", "8xZ80", "8xA100:", "8xA100:x"])
def test_unknown_gpus_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="known names: V100"):
        parse_gpus(text)
