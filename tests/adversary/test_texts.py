"""A liar's words reach no terminal and no log as they are (E9); a stranger's manifest names no file of mine, and starts
nothing that my machine cannot hold."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli import corpus
from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, told
from tests.adversary.patches.lie_forged_lines import FORGED
from tests.harness.running.run_directories import OPEN, common_options, found_run, free_port, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = pytest.mark.processes

PATIENCE_S = 90.0


def is_forged(site: SiteProcess) -> bool:
    """Whether the liar's line stands in the site's output, or something that a terminal obeys."""
    text = site.log_path.read_bytes()
    return b"\x1b" in text or f"\n{FORGED}".encode() in text


def test_reason_of_a_liar_neither_drives_a_terminal_nor_forges_a_line(tmp_path: Path) -> None:
    site = found_run(tmp_path, "a")
    with sites(site):
        site.start_without_model(1.0)
        site.wait_height(1, PATIENCE_S)
        hollow, liar = join_run(tmp_path, "h", site), join_run(tmp_path, "z", site)
        with sites(hollow, liar):
            patched(hollow, "hole_texts")
            patched(liar, "lie_forged_lines")
            wait_until(lambda: is_forged(hollow), "the attack works without the mend", PATIENCE_S, hollow.describe)
            rejected = b"has a control character"
            wait_until(lambda: rejected in told(site), "the liar's reason is rejected", PATIENCE_S, site.describe)
            assert not is_forged(site)
            assert liar.state()["peer_id"].encode() in told(site)
            assert_rounds_go_on(site)
    assert not is_forged(site)


def run_with(folder: Path, **fields: str) -> SiteProcess:
    """A run whose manifest says this, in the hand of an attacker."""
    attacker = found_run(folder, "attacker", *OPEN)
    manifest = attacker.run_dir / "run.toml"
    for name, value in fields.items():
        text, changed = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", manifest.read_text())
        assert changed == 1
        manifest.write_text(text)
    return attacker


def join(folder: Path, address: str, *more: str) -> None:
    """`dilocoxd join`, with "--no-run" short of starting the daemon. Raises what it raises."""
    options = [*common_options(folder / "victim", free_port()), "--cache", str(folder / "cache"), *more]
    result = CliRunner().invoke(cli, ["join", address, *options], standalone_mode=False)
    if result.exception is not None:
        raise result.exception


def test_manifest_of_a_stranger_names_no_file_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary = tmp_path / "diary.txt"
    diary.write_text("Dear diary, the password is still swordfish.\n" * 500)
    attacker = run_with(tmp_path, corpus=f'"text:{diary}"')
    with sites(attacker):
        attacker.start_without_model(1.0)
        address = wait_until(lambda: attacker.status().get("join_address"), "address", PATIENCE_S, attacker.describe)
        with pytest.raises(ConfigError, match="a path from somebody else is never read"):
            join(tmp_path, address, "--no-run")
        assert not (tmp_path / "victim").exists()
        assert not any((tmp_path / "cache").rglob("*"))
        # Without the look at the text the same join goes through, and the diary is what the site is to train on.
        monkeypatch.setattr(corpus, "_have_corpus", lambda *_: None)
        join(tmp_path, address, "--no-run")
        assert str(diary) in (tmp_path / "victim" / "run.toml").read_text()


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
