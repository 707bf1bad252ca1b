"""Real daemons and the real command line: who gets in, who is told why not, and an eviction while rounds go on."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.cli.run_dir.admission import keep_membership, keyring, use_invite
from dilocoxd.config.manifest import load_manifest
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.wire.join_link import read_link
from tests.harness.running.run_directories import common_options, found_run, free_port, join_run, link_of
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = pytest.mark.processes
PATIENCE_S = 90
QUICK_S = 0.5
ELECTORS_S = 200.0
"""For two dozen rounds of phases that last QUICK_S."""


def cli_text(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)
    return done.output


def refused(folder: Path, target: str) -> str:
    """What `dilocoxd join` says; it leaves nothing behind and asks for another configuration."""
    command = [sys.executable, "-m", "dilocoxd", "join", target, "--no-run", "--timeout", "90"]
    done = subprocess.run(
        [*command, *common_options(folder / "stranger", free_port())],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "stranger").exists()
    return done.stderr.strip().splitlines()[-1]


def committed(site: SiteProcess) -> list[set[str]]:
    return [{c["peer"] for c in row["contributors"]} for row in site.rounds() if row["committed_at"]]


def contributors_from(site: SiteProcess, first: int) -> list[set[str]]:
    """Of each entry from round `first` on that the site has."""
    return [
        {c["peer"] for c in row["contributors"]} for row in site.rounds() if row["entry_hash"] and row["round"] >= first
    ]


def assert_rounds_go_on_without(peer: str, *others: SiteProcess) -> None:
    """Once all of `others` know that it is evicted: no entry names it but the one that was under way then."""
    is_told = lambda site: "evicted" in cli_text("members", str(site.run_dir))  # noqa: E731
    wait_until(lambda: all(map(is_told, others)), "the news", PATIENCE_S, others[-1].describe)
    first = max(site.status()["height"] for site in others) + 1
    for site in others:
        site.wait_height(first + 3, PATIENCE_S)
        assert all(peer not in names for names in contributors_from(site, first))


def test_only_who_was_invited_gets_in_and_who_is_evicted_is_out(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a):
        a.start_without_model()
        a.wait_height(1, PATIENCE_S)
        link = link_of(a.run_dir)
        assert "this run admits sites by invite" in refused(tmp_path, read_link(link).address)
        once = cli_text("invite", str(a.run_dir)).split()[-1]
        b = SiteProcess("b", tmp_path / "b", free_port())
        joining = ["join", once, "--no-run", *common_options(b.run_dir, b.port), "--name", "bob"]
        assert CliRunner().invoke(cli, joining, standalone_mode=False, catch_exceptions=False).exit_code == 0
        c = join_run(tmp_path, "c", a)
        with sites(b, c):
            for site in (b, c):
                site.start_without_model()
            ids = [wait_until(lambda s=s: s.status().get("peer_id"), s.name, PATIENCE_S, s.describe) for s in (a, b, c)]  # type: ignore[misc]
            wait_until(lambda: set(ids) in committed(a)[-3:], "a round of three", PATIENCE_S, a.describe)
            assert "the invite was for 1 site and has let in 1" in refused(tmp_path, once)

            assert "bob is evicted" in cli_text("evict", "bob", str(a.run_dir))
            assert_rounds_go_on_without(ids[1], a, c)
            assert "invite was closed" in refused(tmp_path, once)
            assert ids[1] in cli_text("members", str(c.run_dir))


def test_site_joins_through_members_whose_invites_have_expired_and_another_to_follow(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    run_dir = open_run_dir(a.run_dir)
    manifest, site = run_dir.load()
    old = keyring(run_dir, manifest).invite(1_000, 1)
    keep_membership(run_dir, use_invite(old, manifest.sha256(), load(run_dir.identity(site)).peer_id))
    with sites(a):
        a.start_without_model()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a)
        with sites(b):
            b.start_without_model()
            wait_until(lambda: any(len(names) == 2 for names in committed(a)), "a round of two", PATIENCE_S, b.describe)
            link = cli_text("invite", str(a.run_dir), "--role", "observe").split()[-1]
            c = SiteProcess("c", tmp_path / "c", free_port())
            cli_text("join", link, "--no-run", *common_options(c.run_dir, c.port))
            with sites(c):
                c.start_without_model()
                follows = lambda: "lets it follow the run" in c.status().get("waiting_for", "")  # noqa: E731
                wait_until(lambda: follows() and c.status()["state"] == "paused", "c to follow", PATIENCE_S, c.describe)
                c.wait_height(a.status()["height"] + 2, PATIENCE_S)
                assert all(c.status()["peer_id"] not in names for names in committed(a))


def test_forged_expired_and_foreign_links_are_refused_in_one_sentence(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    other = found_run(tmp_path, "other", "--set", "seeds.data=5")
    with sites(a):
        a.start_without_model()
        a.wait_height(0, PATIENCE_S)
        link, foreign = read_link(link_of(a.run_dir)), read_link(link_of(other.run_dir))
        assert link.invite is not None and foreign.invite is not None
        run_dir = open_run_dir(a.run_dir)
        expired = keyring(run_dir, load_manifest(run_dir.run_toml)).invite(1_000, 1)
        assert "the invite has expired" in refused(tmp_path, replace(link, invite=expired).to_text())
        longer = replace(link, invite=replace(link.invite, uses=65))
        assert "the signature of authority number 0 is wrong" in refused(tmp_path, longer.to_text())
        assert "belongs to another run" in refused(tmp_path, replace(foreign, address=link.address).to_text())
        mixed = replace(link, invite=foreign.invite)
        assert "the signature of authority number 0 is wrong" in refused(tmp_path, mixed.to_text())
        assert "is damaged" in refused(tmp_path, link.to_text()[:-1])


def test_members_evict_one_of_them_without_the_authority(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a")
    with sites(a):
        a.start_without_model(QUICK_S)
        a.wait_height(1, PATIENCE_S)
        b, c = join_run(tmp_path, "b", a), join_run(tmp_path, "c", a)
        with sites(b, c):
            for site in (b, c):
                site.start_without_model(QUICK_S)
            everybody = (a, b, c)
            ids = [wait_until(lambda s=s: s.status().get("peer_id"), s.name, PATIENCE_S, s.describe) for s in everybody]  # type: ignore[misc]
            wait_until(lambda: set(ids) in committed(a)[-3:], "a round of three", PATIENCE_S, a.describe)
            counts = lambda: all(sum(one in names for names in committed(b)[-64:]) >= 16 for one in ids)  # noqa: E731
            wait_until(counts, "b and c to be electors", ELECTORS_S, b.describe)
            assert "1 of 2 needed votes" in cli_text("evict", ids[2], str(b.run_dir))
            assert "had voted already" in cli_text("evict", ids[2], str(b.run_dir))
            wait_until(
                lambda: "1 of 2 needed" in cli_text("members", str(a.run_dir)), "the vote", PATIENCE_S, a.describe
            )
            assert "is evicted by 2 votes of 3 members" in cli_text("evict", ids[2], str(a.run_dir), "--vote")
            assert_rounds_go_on_without(ids[2], a, b)
