"""A run with `run.stop_after_tokens` ends by itself, at the same entry everywhere; another one goes on from it."""

from pathlib import Path

import pytest

from dilocoxd.cli.run_dir.foreground import last_line
from dilocoxd.config.manifest import load_manifest
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.store.snapshots import ANCHOR_NAME, list_rounds
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import founder_options, log_of, site_options
from tests.harness.synthetic.fake_site import HOLD

pytestmark = pytest.mark.processes
PATIENCE_S = 90
END_S = 250
"""For the start of real trainers and some rounds."""
TOKENS = 400


def wait_end(site: SiteProcess) -> int:
    assert site.process is not None
    return site.process.wait(END_S)


def test_all_sites_end_at_the_entry_that_completes_the_run(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", "--set", f"run.stop_after_tokens={TOKENS}")
    holds = [a.run_dir / HOLD, tmp_path / "b" / HOLD]
    holds[0].touch()  # neither completes the run alone before the other has started
    with sites(a):
        a.start_without_model(0.2)
        b = join_run(tmp_path, "b", a)
        holds[1].touch()
        with sites(b):
            b.start_without_model(0.2)
            for site in (a, b):
                wait_until(lambda s=site: s.status().get("peers", {}).get("live"), "the other", PATIENCE_S, b.describe)
            for hold in holds:
                hold.unlink()
            assert [wait_end(a), wait_end(b)] == [0, 0]
    (of_a,), (of_b,) = events_of(a, "run.completed"), events_of(b, "run.completed")
    assert (of_a["height"], of_a["tokens"]) == (of_b["height"], of_b["tokens"])
    assert of_a["tokens"] >= TOKENS
    logs = log_of(a), log_of(b)
    assert logs[0].height == logs[1].height == of_a["height"] and logs[0].head == logs[1].head
    last = [signed.entry for signed in logs[0].entries()][-1]
    assert of_a["tokens"] - sum(c.tokens for c in last.contributions) < TOKENS, "nothing comes after the end"
    has = f"{of_a['tokens']:,} tokens, in {of_a['height']} rounds"
    assert last_line(open_run_dir(a.run_dir))[0].startswith(f"complete: the run in {a.run_dir} has its {has}; ")
    stopped = events_of(b, "daemon.stopped")[-1]
    assert stopped["reason"] == f"the run is complete: {of_b['tokens']:,} tokens in {of_b['height']} rounds"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_another_run_goes_on_from_where_one_ended(tmp_path: Path) -> None:
    """As the last line says, with real trainers; a second site fetches its first state."""
    options = ["--set", "run.stop_after_tokens=6000", "--set", "snapshot.every_rounds=1000"]
    a = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=7), *options)
    with sites(a):
        a.start()
        assert wait_end(a) == 0
    assert list_rounds(a.run_dir / "snapshots")[-1] == log_of(a).height, "what the run came to is on disk, due or not"
    words = last_line(open_run_dir(a.run_dir))[1].removeprefix("dilocoxd ").split()
    assert words == ["start", "--from", str(a.run_dir)]
    c = found_run(tmp_path, "c", *words[1:], "--set", "run.stop_after_tokens=2000000")
    parent = f"{load_manifest(a.run_dir / 'run.toml').run_id}@{log_of(a).height}"
    assert load_manifest(c.run_dir / "run.toml").init.parent == parent
    with sites(c):
        c.start()
        c.wait_height(1, PATIENCE_S)
        d = join_run(tmp_path, "d", c, *site_options(tmp_path))
        assert first_state(d) == first_state(c)
        with sites(d):
            d.start()
            d.wait_height(1, PATIENCE_S)
    loss = [one["validation_loss"] for site in (a, c) for one in events_of(site, "validation.measured")]
    first, last, begun = loss[0], loss[len(events_of(a, "validation.measured")) - 1], loss[-1]
    assert last < first and begun < first, "what was learnt is not lost"


def first_state(site: SiteProcess) -> bytes:
    return (site.run_dir / "snapshots" / "0" / ANCHOR_NAME).read_bytes()
