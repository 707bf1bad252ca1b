"""A few hundred hostile inputs for every decoder on each test run; more with `python -m tests.fuzz`."""

from __future__ import annotations

import re
import time
from typing import Final

import pytest

from dilocoxd.errors import WireError
from tests.architecture.walks import ROOT
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


FED_BY: Final = {
    "decode_figures": "shared memory of the outer worker, which is us",
    "decode_prelude": "frames",
    "decode_record": "records",
    "decode_signed": "records",
    "decode_struct": "all structures",
    "token_from_text": "links",
}
"""Decoders of dilocoxd/wire that others call: the targets that feed them, or why none does."""


def test_every_decoder_of_the_wire_is_fed() -> None:
    """A new one is forgotten here, not by whoever sends it something else."""
    wire, fuzz_folder = ROOT / "dilocoxd" / "wire", ROOT / "tests" / "fuzz"
    targets = "".join(
        path.read_text(encoding="utf-8") for path in fuzz_folder.glob("*.py") if path.name != "test_fuzz.py"
    )
    named = re.compile(
        r"^def ((?:decode|unpack|read|take|token_from)_\w+)\(|^([A-Z_]+_MESSAGES)(?:: Final)? = Registry\(",
        re.MULTILINE,
    )
    found = {
        one for path in wire.rglob("*.py") for pair in named.findall(path.read_text(encoding="utf-8")) for one in pair
    }
    found -= {""}
    assert "decode_entry" in found and "NODE_MESSAGES" in found
    forgotten = {one for one in found - FED_BY.keys() if f"{one}" not in targets}
    assert not forgotten, f"nobody feeds {sorted(forgotten)} with hostile bytes: add a target"
    assert FED_BY.keys() <= found, "a decoder that is gone"
