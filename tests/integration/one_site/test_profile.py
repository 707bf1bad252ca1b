"""`dilocoxd profile` of a real site of two ranks: whole traces of both, and a training that goes on."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.errors import PeerError
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.strikes import events_of, wait_event
from tests.harness.running.training import founder_options

pytestmark = pytest.mark.processes
PATIENCE_S = 120


def run(*arguments: str) -> str:
    """Output of a command. Raises what it ended with."""
    done = CliRunner().invoke(cli, list(arguments), standalone_mode=False, env={"COLUMNS": "200"})
    if done.exception is not None:
        raise done.exception
    return done.output


def test_two_steps_of_every_rank_are_recorded_while_the_site_trains(tmp_path: Path) -> None:
    site = found_run(tmp_path, "a", *founder_options(tmp_path), "--stages", "2")
    with sites(site):
        site.start()
        site.wait_height(1, PATIENCE_S)
        said = run("profile", "--steps", "2", str(site.run_dir))
        (folder,) = (site.run_dir / "profiles").iterdir()
        assert f"written: {folder} (rank0.json.gz, rank1.json.gz)" in said and "perfetto" in said
        first = int(folder.name.rpartition("-step")[2])
        assert [path.name for path in sorted(folder.iterdir())] == ["rank0.json.gz", "rank1.json.gz"]
        for path in folder.iterdir():
            names = {event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
            assert "aten::mm" in names
            steps = {name for name in names if name and name.startswith("inner step")}
            assert steps == {f"inner step {number}" for number in (first, first + 1)}
        wait_event(site, "profile.written", 0.0, PATIENCE_S, folder=f"profiles/{folder.name}", steps=2)
        before = site.status()
        site.wait_height(before["height"] + 1, PATIENCE_S)
        assert not events_of(site, "worker.died", "profile.failed")
        run("pause", str(site.run_dir))
        with pytest.raises(PeerError, match="paused"):
            run("profile", str(site.run_dir))
        run("resume", str(site.run_dir))
        wait_until(lambda: site.get("/readyz"), "training again", PATIENCE_S, site.describe)
        run("profile", "--steps", "1", str(site.run_dir))
        assert len(list((site.run_dir / "profiles").iterdir())) == 2
        assert site.stop() == 0
