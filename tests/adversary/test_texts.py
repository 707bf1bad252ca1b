"""A liar's words reach no terminal and no log as they are (E9); a stranger's manifest neither does so nor names a file
of mine, and starts nothing that my machine cannot hold."""

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from dilocoxd.cli.joining import join as joining
from dilocoxd.cli.main import cli
from dilocoxd.config import manifest
from dilocoxd.config.manifest import load_manifest
from dilocoxd.errors import ConfigError
from dilocoxd.wire import codec, records
from tests.adversary.daemon import patched
from tests.adversary.holes.hole_texts import NOTHING
from tests.adversary.judge import assert_rounds_go_on, told
from tests.adversary.patches.lie_forged_lines import FORGED
from tests.adversary.stranger import stranger
from tests.harness.running.run_directories import OPEN, common_options, found_run, free_port, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = pytest.mark.processes

PATIENCE_S = 90.0
NAME = "a\x1b[2J\u202eb"


def forged(site: SiteProcess) -> set[str]:
    """What stands in the site's output: the liar's line, what a terminal obeys, what turns text around."""
    text = site.log_path.read_text()
    return {mark for mark in ("\x1b", f"\n{FORGED}", "\u202e") if mark in text}


def names(site: SiteProcess) -> set[str]:
    """What its peers call themselves, as it tells."""
    return {str(peer["name"]) for peer in site.get("/v1/peers") or ()}


async def call_myself(folder: Path, victim: SiteProcess, name: str) -> str:
    """A stranger with this name meets a site, which tells what it is called or rejects it; the stranger's peer id."""
    async with stranger(folder, victim) as me:
        await me.greet(victim, name=name)
        who = str(me.identity.peer_id)
        await asyncio.to_thread(
            wait_until,
            lambda: name in names(victim) or who in victim.state()["bad_input"],
            "its name, or that it is rejected",
            PATIENCE_S,
            victim.describe,
        )
        return who


def test_reason_of_a_liar_neither_drives_a_terminal_nor_forges_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = found_run(tmp_path, "a", *OPEN)
    with sites(site):
        site.start_without_model(1.0)
        site.wait_height(1, PATIENCE_S)
        hollow, liar = join_run(tmp_path, "h", site), join_run(tmp_path, "z", site)
        with sites(hollow, liar):
            patched(hollow, "hole_texts")
            patched(liar, "lie_forged_lines")
            wait_until(
                lambda: len(forged(hollow)) == 3, "the attack works without the mend", PATIENCE_S, hollow.describe
            )
            rejected = b"has a control character"
            wait_until(lambda: told(site).count(rejected) >= 3, "the reasons are rejected", PATIENCE_S, site.describe)
            assert not forged(site)
            assert liar.state()["peer_id"].encode() in told(site)
            monkeypatch.setattr(records, "is_site_name", lambda text: True)
            monkeypatch.setattr(codec, "CONTROL", NOTHING)
            called = {
                one.name: asyncio.run(call_myself(tmp_path / f"s{one.name}", one, NAME)) for one in (site, hollow)
            }
            assert NAME in names(hollow) and NAME not in names(site)
            assert "malformed" in site.state()["bad_input"][called["a"]]
            assert_rounds_go_on(site)
    assert not forged(site)


def run_with(folder: Path, **fields: str) -> SiteProcess:
    """A run whose manifest says this, in the hand of an attacker."""
    attacker = found_run(folder, "attacker", *OPEN)
    run_toml = attacker.run_dir / "run.toml"
    for name, value in fields.items():
        row = f"{name} = {value}"
        text, changed = re.subn(rf"(?m)^{name} = .*$", lambda _, row=row: row, run_toml.read_text())
        assert changed == 1
        run_toml.write_text(text)
    return attacker


def join(folder: Path, address: str, *more: str) -> str:
    """What `dilocoxd join` says, with "--no-run" short of starting the daemon. Raises what it raises."""
    options = [*common_options(folder / "victim", free_port()), "--cache", str(folder / "cache"), *more]
    result = CliRunner().invoke(cli, ["join", address, *options], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_manifest_of_a_stranger_names_no_file_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary = tmp_path / "yraid\u202e.txt"
    diary.write_text("Dear diary, the password is still swordfish.\n" * 500)
    attacker = run_with(tmp_path, corpus=json.dumps(f"text:{diary}"))
    with sites(attacker):
        patched(attacker, "hole_texts")
        address = wait_until(lambda: attacker.status().get("join_address"), "address", PATIENCE_S, attacker.describe)
        with pytest.raises(ConfigError, match=r"data\.corpus holds a control character"):
            join(tmp_path, address, "--no-run")
        monkeypatch.setattr(manifest, "CONTROL", NOTHING)
        with pytest.raises(ConfigError, match="a path from somebody else is never read"):
            join(tmp_path, address, "--no-run")
        assert not (tmp_path / "victim").exists()
        assert not any((tmp_path / "cache").rglob("*"))
        # Without the look at the text the same join goes through, and the diary is what the site is to train on.
        unseen = SimpleNamespace(bring=lambda access: None)
        monkeypatch.setattr(joining, "given_text", lambda *_: unseen)
        assert diary.name in join(tmp_path, address, "--no-run"), "and its name is shown as another"
        assert str(diary) in load_manifest(tmp_path / "victim" / "run.toml").data.corpus


def test_manifest_that_no_machine_can_hold_starts_nothing(tmp_path: Path) -> None:
    """TRUST M7: Hundreds of billions of parameters, from somebody whom the site has never met."""
    attacker = run_with(tmp_path, hidden_size="65536", num_layers="16")
    with sites(attacker):
        attacker.start_without_model(1.0)
        address = wait_until(lambda: attacker.status().get("join_address"), "address", PATIENCE_S, attacker.describe)
        with pytest.raises(ConfigError, match="Use a machine with more memory"):
            join(tmp_path, address, "--yes")
        assert not (tmp_path / "victim").exists()
        # Who says that it shall not be looked at has the run on disk, ready to be started.
        join(tmp_path, address, "--yes", "--force", "--no-run")
        assert "hidden_size = 65536" in (tmp_path / "victim" / "run.toml").read_text()
