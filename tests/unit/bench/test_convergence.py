"""The convergence study on a toy task: every kind of preset runs, learns, counts its bytes, and is not run twice."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dilocoxd.config.agreement import OuterSection, StrategySection
from dilocoxd.config.presets import preset_tables
from dilocoxd.store.prepared import CACHE_VARIABLE
from tests.bench.convergence.liars import PAGE, RESULTS, Case, rendered, report, run_case
from tests.bench.convergence.presets import ALL_REDUCE, PRESETS, resolve
from tests.bench.convergence.report import bytes_table, table
from tests.bench.convergence.sites import TASKS, Task
from tests.bench.convergence.study import Results, Start, next_phase, run_preset
from tests.bench.trust import cost

WORDS = ("the", "anchor", "moves", "when", "peers", "agree", "and", "every", "site", "trains", "on")
LIARS = (
    Case("int4", "none", 0, 4),
    Case("int4", "clip", 0, 4),
    *(Case("int4", defence, 1, 4, "x -1e6") for defence in ("none", "clip", "centered")),
)
RATE = "inner_lr=3e-3"
"""The study's own rate for sites is too low to learn anything in 60 steps."""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    text = " ".join(WORDS[(i * i + i // 7) % len(WORDS)] for i in range(20_000))
    corpus = tmp_path / "text" / "words.txt"
    corpus.parent.mkdir()
    corpus.write_text(text, encoding="utf-8")
    return Task(hidden_size=32, num_layers=1, vocab_size=280, seq_len=32, batch_sequences=2, corpus=f"text:{corpus}")


@pytest.mark.slow
def test_presets_learn_and_count_their_bytes(task: Task, tmp_path: Path) -> None:
    results = Results(tmp_path / "out.json", task)
    start = Start(task, task.data(), 0, task.genesis(0))
    for name in (
        ALL_REDUCE,
        "diloco-int4",
        "default",
        "dilocox",
        "dilocox-eager",
        "streaming",
        "sparseloco",
        "muon-int4",
    ):
        results.add(run_preset(start, f"{name}@{RATE}", 60, lambda done: None))
    rows = {row["preset"].partition("@")[0]: row for row in results.rows}
    assert all(row["validation_loss"] < math.log(280) - 0.3 for row in rows.values()), rows
    assert rows[ALL_REDUCE]["bytes_ratio"] == 1
    assert rows["diloco-int4"]["bytes_ratio"] == pytest.approx(20 * 32 / 4.125, rel=0.02)
    assert rows["streaming"]["bytes_ratio"] == pytest.approx(20 * 32 / 4.0625, rel=0.02)
    assert rows["default"]["rounds"] == max(1, 60 // resolve("default").inner_steps)
    again = Results(tmp_path / "out.json", task)
    assert again.has(f"default@{RATE}", 0, 60)
    assert not again.has(f"default@{RATE}", 1, 60)
    assert f"| default@{RATE} | {resolve('default').inner_steps} | arrival |" in table(again.rows)


def test_a_run_is_cut_into_equal_phases_that_are_never_short() -> None:
    for total in (1, 33, 34, 67, 68, 136, 272):
        left, phases = total, []
        while left:
            phases.append(next_phase(34, left))
            left -= phases[-1]
        assert sum(phases) == total
        assert len(phases) == max(1, total // 34)
        assert max(phases) - min(phases) <= 1


def test_the_default_sends_at_least_500_times_fewer_bytes_by_formula() -> None:
    preset, layout = resolve("default"), TASKS["standard"].layout()
    sent = sum(map(sum, preset.transform(layout).payload_table()))
    assert preset.inner_steps * 4 * layout.numel >= 500 * sent


@pytest.mark.parametrize("shipped", ["small", "small:default", "demo:default"])
def test_the_shipped_default_is_the_preset_of_the_study(shipped: str) -> None:
    measured, tables = resolve("default"), preset_tables(shipped)
    strategy, outer = StrategySection.model_validate(tables["strategy"]), OuterSection.model_validate(tables["outer"])
    assert (strategy.delay, strategy.codec, strategy.transform) == (measured.delay, measured.codec, "identity")
    assert (strategy.inner_steps, strategy.error_feedback) == (measured.inner_steps, measured.feedback)
    assert (outer.optimizer, outer.lr, outer.momentum) == (measured.optimizer, measured.lr, measured.momentum)
    assert tables["inner"]["min_lr_ratio"] == measured.min_lr_ratio
    assert tables["inner"]["optimizer"] == measured.inner


def test_a_file_with_one_preset_says_its_figures_at_the_top(task: Task, tmp_path: Path) -> None:
    results = Results(tmp_path / "out.json", task)
    for seed, loss in enumerate((3.0, 3.2, 3.1)):
        row = {"preset": "default", "seed": seed, "steps": 34, "validation_loss": loss, "bytes_ratio": 512.0}
        results.add(row)
    kept = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (kept["preset"], kept["validation_loss"], kept["bytes_ratio"]) == ("default", 3.1, 512.0)
    results.add({"preset": ALL_REDUCE, "seed": 0, "steps": 34, "validation_loss": 2.9, "bytes_ratio": 1.0})
    kept = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert "validation_loss" not in kept
    assert len(kept["rows"]) == 4


def test_qsr_lengthens_phases_as_the_rate_falls(task: Task) -> None:
    start = Start(task, task.data(), 0, task.genesis(0))
    row = run_preset(start, "qsr@inner_steps=4,inner_lr=2e-3,qsr=4e-3,min_lr_ratio=0", 24, lambda done: None)
    # rates at steps 0, 4 and 8 of 24 give 4, 4 and 7 steps; what is left is the last phase
    assert row["rounds"] == 4


def test_all_presets_start_from_one_checkpoint_that_is_trained_once(task: Task) -> None:
    task = replace(task, checkpoint_steps=3, checkpoint_sequences=2)
    trained: list[int] = []
    first = Start.of(task, task.data(), 0, trained.append)
    again = Start.of(replace(task, batch_sequences=4), task.data(), 1, lambda done: pytest.fail("trained again"))
    assert trained
    assert torch.equal(first.theta, again.theta)
    assert not torch.equal(first.theta, task.genesis(0))


def test_names_that_others_rely_on_exist() -> None:
    assert "default" in PRESETS
    assert sum(preset.is_control for preset in PRESETS.values()) >= 3


def test_a_name_carries_changes_of_any_field() -> None:
    changed = resolve("default@codec=topk:128,inner_steps=8,momentum=0.7")
    assert (changed.codec, changed.inner_steps, changed.momentum) == ("topk:128", 8, 0.7)
    assert changed.delay == resolve("default").delay
    for wrong in ("unknown", "default@unknown=1"):
        with pytest.raises(KeyError):
            resolve(wrong)


def test_the_table_of_bytes_has_a_line_per_preset(task: Task) -> None:
    lines = bytes_table({"toy": task.layout()}).splitlines()
    assert len(lines) == 2 + len(PRESETS)
    assert any(line.startswith("| diloco-int4 | 20 | 4.1") and line.endswith("| 155 |") for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_table_of_liars_is_what_was_measured(name: str) -> None:
    page, rows = PAGE.read_text(encoding="utf-8"), json.loads(RESULTS[name].read_text(encoding="utf-8"))
    assert rendered(page, name, rows) == page, "python -m tests.bench.convergence.liars --page"
    assert rendered(page, name, rows[1:]) != page


def test_liars_break_a_plain_mean_and_are_held_back_by_clipping(task: Task) -> None:
    start = Start(task, task.data(), 0, task.genesis(0))
    loss = {(c.defence, c.attack): run_case(start, c, 2) for c in LIARS}
    honest = loss["none", ""]
    assert loss["clip", ""] == pytest.approx(honest, rel=1e-3), "no tax where nobody lies"
    knows_nothing = math.log(280)
    assert loss["none", "x -1e6"] > knows_nothing - 0.01
    assert loss["clip", "x -1e6"] < knows_nothing - 0.03, "one of four may take 2.5 of 5.5 norms"
    assert loss["centered", "x -1e6"] < loss["clip", "x -1e6"] - 0.03
    rows: list[dict[str, Any]] = [{"case": asdict(c), "loss": loss[c.defence, c.attack]} for c in LIARS]
    line = next(line for line in report(rows).splitlines() if line.startswith("| 1/4 | x -1e6 | int4 | "))
    none, clip, _, centered, _ = (cell.strip() for cell in line.split("|")[4:-1])
    # A plain mean is taken anywhere by such a liar: how far is a matter of this CPU's rounding.
    assert none == "diverged" or none.startswith("+"), line
    assert clip.startswith("+"), line
    assert centered.startswith("+"), line


def test_table_of_what_trust_costs_is_what_was_measured() -> None:
    page, rows = cost.PAGE.read_text(encoding="utf-8"), json.loads(cost.RESULTS.read_text(encoding="utf-8"))
    assert cost.rendered(page, rows) == page, "python -m tests.bench.trust.cost --page"
    assert cost.rendered(page, rows[1:]) != page
