"""Real daemons and the command line: authorities hand over to others, and members replace those who lost their keys."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.store.rundir import open_run_dir
from tests.harness.running.run_directories import common_options, found_run, free_port, join_run, link_of
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.integration.admission.test_admission import (
    ELECTORS_S,
    PATIENCE_S,
    QUICK_S,
    cli_text,
    committed,
    refused as refused_join,
)
from tests.remedies.refused.elsewhere import refused

pytestmark = pytest.mark.processes


def join_by(folder: Path, name: str, link: str) -> SiteProcess:
    site = SiteProcess(name, folder / name, free_port())
    cli_text("join", link, "--no-run", *common_options(site.run_dir, site.port))
    return site


def wait_together(*group: SiteProcess) -> list[str]:
    """Peer ids, once all of them are in one round."""
    ids = [wait_until(lambda s=s: s.status().get("peer_id"), s.name, PATIENCE_S, s.describe) for s in group]  # type: ignore[misc]
    wait_until(lambda: set(ids) in committed(group[0])[-3:], f"a round of {len(ids)}", PATIENCE_S, group[0].describe)
    return ids


def test_authority_hands_over_and_its_old_links_are_void(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a):
        a.start_without_model()
        a.wait_height(1, PATIENCE_S)
        b, c = join_run(tmp_path, "b", a), join_run(tmp_path, "c", a)
        with sites(b, c):
            for site in (b, c):
                site.start_without_model()
            wait_together(a, b, c)
            old, key = link_of(a.run_dir), str(tmp_path / "new.key")
            cli_text("authority", "new", key)
            told = cli_text("authority", "rotate", str(a.run_dir), "--key", key, "--void-invites")
            assert "list 1 of the authorities is in force" in told
            assert "1 of 1 keys are here" in cli_text("authority", "import", str(a.run_dir), key)
            for site in (b, c):
                wait_until(
                    lambda s=site: "list 1" in cli_text("members", str(s.run_dir)),
                    "the news",
                    PATIENCE_S,
                    site.describe,
                )  # type: ignore[misc]
            assert "who made this invite were replaced" in refused_join(tmp_path, old)
            d = join_by(tmp_path, "d", cli_text("invite", str(a.run_dir)).split()[-1])
            with sites(d):
                d.start_without_model()
                wait_together(a, b, c, d)
                assert "list 1" in cli_text("members", str(d.run_dir))
                assert "void from" in cli_text("authority", "show", str(d.run_dir))


def test_members_replace_authorities_whose_keys_are_lost(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a):
        a.start_without_model(QUICK_S)
        a.wait_height(1, PATIENCE_S)
        open_run_dir(a.run_dir).authority_key.unlink()
        b, c = join_run(tmp_path, "b", a), join_run(tmp_path, "c", a)
        with sites(b, c):
            for site in (b, c):
                site.start_without_model(QUICK_S)
            ids = wait_together(a, b, c)
            counts = lambda: all(sum(one in names for names in committed(b)[-64:]) >= 24 for one in ids)  # noqa: E731
            wait_until(counts, "three electors", ELECTORS_S, b.describe)
            key = str(tmp_path / "new.key")
            cli_text("authority", "new", key)
            with refused("cli/run_dir/authority.py", "give either the ID of a list"):
                cli_text("authority", "vote", str(b.run_dir))
            told = cli_text("authority", "vote", str(b.run_dir), "--key", key)
            assert "1 of 2 needed votes" in told
            short = told.split()[-1]
            wait_until(
                lambda: short in cli_text("authority", "show", str(c.run_dir)), "the vote", PATIENCE_S, c.describe
            )
            with refused("cli/run_dir/authority.py", "lists begin with"):
                cli_text("authority", "vote", str(c.run_dir), "no-id")
            with refused("cli/run_dir/authority.py", "leave --threshold, --void-invites and --instead-of out"):
                cli_text("authority", "vote", str(c.run_dir), short, "--threshold", "1")
            assert "is decided by 2 votes of 3 members" in cli_text("authority", "vote", str(c.run_dir), short)
            wait_until(
                lambda: "list 1" in cli_text("members", str(a.run_dir)), "the news reach a", PATIENCE_S, a.describe
            )
            wait_until(
                lambda: "list 1" in cli_text("members", str(b.run_dir)), "the news reach b", PATIENCE_S, b.describe
            )
            again = ("authority", "vote", str(b.run_dir), "--key", f"{1:064x}", "--instead-of")
            with refused("cli/run_dir/authority.py", "there is no such list in force"):
                cli_text(*again, "9")
            assert "in force  members" in cli_text("authority", "show", str(b.run_dir))
            assert "1 of 2 needed votes" in cli_text(*again, "1")
            wait_until(lambda: _has_key(b, key), "the file of b", PATIENCE_S, b.describe)
            d = join_by(tmp_path, "d", cli_text("invite", str(b.run_dir)).split()[-1])
            with sites(d):
                d.start_without_model(QUICK_S)
                wait_together(a, b, c, d)
                assert "members" in cli_text("authority", "show", str(d.run_dir))


def _has_key(site: SiteProcess, key: str) -> bool:
    from dilocoxd.cli.main import cli

    done = CliRunner().invoke(cli, ["authority", "import", str(site.run_dir), key], standalone_mode=False)
    return done.exception is None
