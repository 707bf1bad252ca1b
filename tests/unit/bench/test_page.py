"""`make bench`: pages are what the JSON says, rows end in time, a busy machine is not measured."""

import argparse
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.architecture.papers import page_problems
from tests.bench.page import __main__ as program
from tests.bench.page.render import FIGURES, PAGES, PageError, figures, rendered, value_of
from tests.bench.page.results import Result, parse, read, write
from tests.bench.page.rows import ROWS, SECONDS_MAX, Row, row_of
from tests.harness.running.sites import wait_until
from tests.integration.test_benchmarks import SHORTEST

PAGE, LAB = PAGES
RESULT = Result(
    "codecs", "python -m tests.bench.compression", "2026-11-25", "2 cores of a thing", (0.1, 1.9), 12.0,
    [
        [{"codec": "int4", "both_memcpys": 2.5}, {"codec": "int2", "both_memcpys": 12.0},
         {"codec": "topk", "both_memcpys": 9.0}],
        [{"matrix": "1024x4096", "lowrank_r": 64.0, "ratio_fp32": 1.45, "ratio_exact": 0.9}],
    ],
    ["one thread"],
)  # fmt: skip
QUICK = Row("quick", "machines.exchange", "--segments 40 --repetitions 1", 60)


def only_codecs(name: str) -> Result | None:
    return RESULT if name == "codecs" else None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_what_the_results_say(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert rendered(text) == text, "make bench ARGS=--pages"


def test_every_row_has_its_block_and_a_link_leads_to_it() -> None:
    found = re.findall(r"^## (\S+)$(?:(?!^## ).)*?<!-- bench:(\S+) -->", LAB.read_text("utf-8"), re.M | re.S)
    assert found == [(row.name, row.name) for row in ROWS]
    assert f"<!-- bench:{FIGURES} -->" in PAGE.read_text("utf-8")


def test_the_page_has_room_for_all_figures() -> None:
    def everything(name: str) -> Result:
        tables: list[list[dict[str, object]]] = [[], []]
        for figure in row_of(name).figures:
            tables[figure.table].append({**figure.where, figure.column: 1.0})
        lines = [re.sub(r"\(.*\)", "1.0", figure.pattern) for figure in row_of(name).figures]
        return replace(RESULT, row=name, tables=tables, lines=lines)

    assert not page_problems(rendered(PAGE.read_text("utf-8"), everything))


def test_rows_are_benchmarks_and_take_half_an_hour_at_most() -> None:
    assert {row.module for row in ROWS} <= set(SHORTEST)
    assert sum(row.limit_s for row in ROWS) <= SECONDS_MAX


TIMES_LEAST = 5
OF_A_SITE_EACH = {"survivors": 1}
"""A kill and the way back are 40 s: more of them, and the rows together would not end within half an hour."""
OF_MANY_STEPS = {"headline": 3, "headline-357": 4, "data": 0, "codec-memory": 0, "added-delay": 0}
"""Shares of the time of all steps of so many rounds, throughput over a store, bytes, 100s of round trips."""


def test_what_is_a_timing_is_a_median_of_five() -> None:
    """Of the words that say how often: the first of a run warms up where a benchmark drops it (outer-step)."""
    for row in ROWS:
        said = dict(re.findall(r"--(repetitions|turns|kills|rounds) (\d+)", row.options))
        first = row.options.partition(" ")[0]
        said |= {"times": first} if first.isdecimal() else {}
        times = [int(said[word]) for word in ("turns", "repetitions", "kills", "times", "rounds") if word in said]
        least = OF_A_SITE_EACH.get(row.name, OF_MANY_STEPS.get(row.name, TIMES_LEAST))
        if row.name != "exchange-machine":  # five pairs where nothing is said
            assert (times or [0])[0] - (row.name == "outer-step") >= least, row.name


def test_figures_say_whether_their_targets_are_met() -> None:
    lines = figures(only_codecs).splitlines()
    assert any("**2.5** | at most 3 | [codecs](lab/measured.md#codecs), 2026-11-25, 0.1 |" in line for line in lines)
    assert any("*12* | at most 8 |" in line for line in lines)
    missing = " ".join(line for line in lines if not line.startswith("|"))
    assert "Not measured yet: `headline`, `headline-357`, `codec-memory`, " in missing


def test_blocks_are_made_again_and_all_else_stays() -> None:
    text = "before\n<!-- bench:codecs -->\nold\n<!-- /bench:codecs -->\nafter\n"
    new = rendered(text, only_codecs)
    assert new.startswith("before\n<!-- bench:codecs -->\n`python -m tests.bench.compression`, 2026-11-25, 2 cores")
    assert "| codec | both_memcpys |\n|---|---|\n| int4 | 2.5 |" in new
    assert "- one thread\n<!-- /bench:codecs -->\nafter\n" in new
    assert "old" not in new
    assert rendered(new, only_codecs) == new
    drawn = rendered(text.replace("codecs", "headline"), lambda _: RESULT)
    assert "![headline](../images/headline.png)" in drawn
    with pytest.raises(PageError, match="there is no such row"):
        rendered(text.replace("codecs", "codex"), only_codecs)


def test_a_result_without_the_figure_of_its_row_is_no_result() -> None:
    with pytest.raises(PageError, match="make bench ARGS=codecs"):
        value_of(row_of("codecs").figures[0], replace(RESULT, tables=[[{"codec": "int4", "both_memcpys": None}]]))


def test_others_that_never_went_on_are_told_and_not_an_error() -> None:
    lines = [{"way": "gloo", "next_s": 0.95}, {"way": "hivemind", "next_s": None}, {"way": "torchft", "next_s": 6.7}]
    shown = figures(lambda _: replace(RESULT, row="others", tables=[lines]), [row_of("others")])
    assert "| 0.95 |" in shown
    assert "| none in time |" in shown
    with pytest.raises(PageError, match="make bench ARGS=others"):
        figures(lambda _: replace(RESULT, row="others", tables=[lines[:1]]), [row_of("others")])


def test_a_row_that_the_page_could_not_show_is_not_measured(tmp_path: Path) -> None:
    lacking = replace(QUICK, figures=(replace(row_of("codecs").figures[0], table=0),))
    assert "make bench ARGS=quick" in str(program.measure(lacking, tmp_path))


def test_what_benchmarks_print_is_read() -> None:
    assert parse('{"a": 1}\n{"a": 2}\n') == ([[{"a": 1}, {"a": 2}]], [])
    assert parse('{\n "a": {"b": 1}\n}\n') == ([[{"a.b": 1}]], [])
    two = "| x | y |\n|---|---|\n| 1 | 2 |\n\n| a | b |\n|---|---|\n| 3 | 4 |\n"
    assert parse(two) == ([[{"x": 1.0, "y": 2.0}], [{"a": 3.0, "b": 4.0}]], [])
    text = "load 3\n| x | y |\n|---|---|\n| a b | 1.5 |\n| c | - |\n\n| z |\n|---|\n| 2 |\nten times\n"
    assert parse(text) == ([[{"x": "a b", "y": 1.5}, {"x": "c", "y": "-"}], [{"z": 2.0}]], ["load 3", "ten times"])


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read("codecs", tmp_path) is None
    write(RESULT, tmp_path)
    assert read("codecs", tmp_path) == RESULT


def test_a_busy_machine_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (7.0, 7.0, 7.0))
    options = argparse.Namespace(anyway=False, load_max=1.0, settle_s=0.0, slower=1.0, results=tmp_path)
    assert program.run([QUICK], options) == 1
    assert "NOT MEASURED: load 7.0 is above 1" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    options.anyway = True
    assert program.run([QUICK], options) == 0
    found = read("quick", tmp_path)
    assert found is not None
    assert found.load == (7.0, 7.0)
    assert any("ten times the segments" in line for line in found.lines)


def test_a_row_that_is_ended_leaves_what_it_has_entered() -> None:
    command = [sys.executable, "-m", "tests.bench.page.row", "machines.exchange", "--segments", "9000000"]
    with subprocess.Popen(command, cwd=PAGE.parents[1]) as process:
        status = Path(f"/proc/{process.pid}/status")

        def is_handled() -> bool:
            caught = dict(line.split(":\t", 1) for line in status.read_text().splitlines())["SigCgt"]
            return bool(int(caught, 16) >> signal.SIGTERM - 1 & 1)

        wait_until(is_handled, "a row that hears SIGTERM", 120.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 1, "an exit, not a death by the signal"


def test_a_row_that_does_not_end_is_ended_and_one_that_fails_says_why(tmp_path: Path) -> None:
    told = str(program.measure(replace(QUICK, limit_s=0), tmp_path, 3))
    assert told.startswith("not over after 0 s;") and told.endswith("make bench ARGS='--slower 6 quick'")
    assert "unrecognized arguments: --wrong" in str(program.measure(replace(QUICK, options="--wrong"), tmp_path))
