"""`dilocoxd export` killed behind each change that it makes on a disk: what is there is whole, and once more works."""

import itertools
from pathlib import Path

import pytest

from tests.harness.killed_command import contents, run_command
from tests.harness.outer_worker.run_on_disk import make_run

pytestmark = pytest.mark.slow
CHANGES_MIN = 16
"""The hidden folder, state 3 and the weights of it, tokenizer, config, sums, card, and the place itself."""


def test_killed_export_leaves_nothing_that_looks_whole_and_once_more_works(tmp_path: Path) -> None:
    run = make_run(tmp_path / "site", rounds=3, snapshots_at=(2,), model={"num_layers": 1})
    before = contents(run.run_dir.path)
    place = tmp_path / "place"
    place.mkdir()
    command = ["export", str(run.run_dir.path), "--round", "3", "--out"]
    assert run_command([*command, str(tmp_path / "whole")], place)[0] == 0
    whole = contents(tmp_path / "whole")
    for killed_at in itertools.count(1):
        status, said = run_command([*command, "out"], place, killed_at)
        assert status in (0, -9), said
        assert [path.name for path in place.iterdir()] in (["out"], [".out.tmp"])
        if not (place / "out").exists():
            assert run_command([*command, "out"], place)[0] == 0
        assert [path.name for path in place.iterdir()] == ["out"]
        assert contents(place / "out") == whole
        assert contents(run.run_dir.path) == before
        if status == 0:
            break
        (place / "out").rename(tmp_path / f"out-{killed_at}")
    assert killed_at > CHANGES_MIN
