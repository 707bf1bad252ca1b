"""A few hundred hostile inputs for every decoder on each test run; more with `python -m tests.fuzz`."""

from __future__ import annotations

import time

import pytest

from dilocoxd.errors import WireError
from tests.fuzz import runner
from tests.fuzz.runner import BATCH, fuzz
from tests.fuzz.targets import Target, all_targets


@pytest.mark.parametrize("target", all_targets(), ids=lambda target: target.name.replace(" ", "_"))
def test_decoder_answers_hostile_bytes_with_typed_errors_only(target: Target) -> None:
    tally = fuzz(target, seconds=0.0, first_seed=1)
    assert not tally.problem, tally.problem
    assert tally.num_inputs >= BATCH / 2
    assert sum(count for outcome, count in tally.outcomes.items() if outcome != "accepted") > 0


def test_decoder_that_crashes_or_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CPU_MAX_S", 0.01)

    def crashes(data: bytes) -> None:
        if len(data) > 3:
            raise IndexError("a bug")

    def is_slow(data: bytes) -> None:
        end = time.thread_time() + 2 * runner.CPU_MAX_S
        while time.thread_time() < end:
            pass

    def refuses(data: bytes) -> None:
        raise WireError("malformed", "always")

    corpus = (b"abcdef",)
    assert "a bug" in fuzz(Target("crashes", crashes, corpus), 0.0, 1).problem
    assert "s of CPU" in fuzz(Target("is slow", is_slow, corpus), 0.0, 1).problem
    assert fuzz(Target("refuses", refuses, corpus), 0.0, 1).problem == ""
