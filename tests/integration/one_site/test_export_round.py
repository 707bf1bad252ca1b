"""`dilocoxd export --round K` of a daemon that lives, and of its directory once it has stopped."""

from pathlib import Path

import pytest

from dilocoxd.cli.main import main
from dilocoxd.store.snapshots import list_rounds
from tests.harness.killed_command import contents
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import PATIENCE_S, founder_options
from tests.remedies.refused.elsewhere import refused
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
EVERY, GONE, FIRST = 2, 1, 6
"""Rounds from snapshot to snapshot; one that nothing leads to any more, and the snapshot with which it has gone."""
OPTIONS = (
    "--set", f"snapshot.every_rounds={EVERY}", "--set", "snapshot.keep=3", "--set", "storage.payload_bytes_max=1",
    "--set", "data.evaluate_every_rounds=0",
)  # fmt: skip


def is_far_enough(site: SiteProcess) -> bool:
    """What leads to GONE was dropped, and an entry certifies the state behind it."""
    written = {one["round"] for one in events_of(site, "snapshot.written")}
    return FIRST in written and site.status().get("height", 0) > FIRST + 1


def test_a_live_site_and_its_directory_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=2), *OPTIONS)
    of_run = str(site.run_dir)

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["dilocoxd", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    def exported(how: str) -> tuple[list[dict[str, bytes]], str]:
        """Files of both rounds, and what is said of the one that is gone."""
        found = []
        for number in (snapshot, between):
            out = tmp_path / f"{how}-{number}"
            assert run("export", of_run, "--round", str(number), "--out", str(out)) == 0
            found.append(contents(out))
        capsys.readouterr()
        assert run("export", of_run, "--round", str(GONE), "--out", str(tmp_path / f"{how}-gone")) == 78
        (said,) = capsys.readouterr().err.splitlines()
        return found, said

    with refused("cli/model/options.py", "no model is in it yet; begin with"):
        invoke("export", of_run, "--out", str(tmp_path / "early"))
    with sites(site):
        site.start()
        wait_until(lambda: is_far_enough(site), f"state {FIRST + 1}", PATIENCE_S, site.describe)
        assert "evaluates nothing" in site.status()["unwatched"], "of the alert harmful_contribution"
        assert run("pause", of_run) == 0
        # However many rounds there were until then: one more snapshot, of what is on its way, leaves the second newest.
        snapshot = list_rounds(site.run_dir / "snapshots")[-2]
        between = snapshot + 1
        live, said_live = exported("live")
        assert site.stop() == 0
    stopped, said_stopped = exported("stopped")
    assert live == stopped
    assert live[0]["model.safetensors"] != live[1]["model.safetensors"]
    assert f"| entry {between}, `".encode() in live[1]["README.md"]
    for said in (said_live, said_stopped):
        assert said.startswith(f"dilocoxd: round {GONE} cannot be made again here: its snapshot is gone")
        assert f" {snapshot}, " in said and "--now" in said
    assert not list(tmp_path.glob("*gone*"))
