"""The convergence study on a toy task: every kind of preset runs, learns, counts its bytes, and is not run twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dilocoxd.trainer.data.prepare import CACHE_VARIABLE
from tests.bench.convergence.presets import ALL_REDUCE, PRESETS
from tests.bench.convergence.report import table
from tests.bench.convergence.sites import Task
from tests.bench.convergence.study import Results, run_preset

WORDS = ("the", "anchor", "moves", "when", "peers", "agree", "and", "every", "site", "trains", "on")


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
    data = task.data()
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
        results.add(run_preset(task, data, name, 0, 60, lambda done: None))
    rows = {row["preset"]: row for row in results.rows}
    assert all(row["validation_loss"] < math.log(280) - 0.3 for row in rows.values()), rows
    assert rows[ALL_REDUCE]["bytes_ratio"] == 1
    assert rows["diloco-int4"]["bytes_ratio"] == pytest.approx(20 * 32 / 4.125, rel=0.02)
    assert rows["streaming"]["bytes_ratio"] == pytest.approx(20 * 32 / 4.0625, rel=0.02)
    assert rows["default"]["rounds"] == 3
    again = Results(tmp_path / "out.json", task)
    assert again.has("default", 0, 60)
    assert not again.has("default", 1, 60)
    assert "| default | 20 | arrival |" in table(again.rows)


def test_names_that_others_rely_on_exist() -> None:
    assert "default" in PRESETS
    assert sum(preset.is_control for preset in PRESETS.values()) >= 3
