"""Joining a closed run: which ids are listed at first, and where the own one is kept."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.joining.closed import not_listed, with_listed
from dilocoxd.cli.joining.newcomer import Newcomer, Target
from dilocoxd.cli.main import cli
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.errors import ConfigError
from dilocoxd.swarm.discovery import identity

FOUNDER = "QmQASsxyKJL3KkHCCELqdoPzTGXiTPKKNehiK2f6b247iK"


def newcomer(folder: Path, address: str) -> Newcomer:
    key = identity.create(folder / "first.key")
    return Newcomer(Target((address,), None), key.path, key.peer_id, None, None)


def run_of(mode: str) -> Manifest:
    return manifest_from_tables({**preset_tables("tiny"), "admission": {"mode": mode}}, source="tiny")


def test_site_that_a_closed_run_is_joined_by_is_listed_unless_others_are_named(tmp_path: Path) -> None:
    who, given = newcomer(tmp_path, f"/ip4/10.0.0.7/tcp/31337/p2p/{FOUNDER}"), {"network": {"port": 5}}
    assert with_listed(given, run_of("closed"), who) == {"network": {"port": 5, "peers_allowed": (FOUNDER,)}}
    named = {"network": {"peers_allowed": ("QmOther",)}}
    assert with_listed(named, run_of("closed"), who) is named
    assert with_listed(given, run_of("open"), who) is given


def test_address_that_does_not_say_whose_it_is_asks_for_the_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"name the sites .* --set 'network\.peers_allowed="):
        with_listed({}, run_of("closed"), newcomer(tmp_path, "10.0.0.7:31337"))


def test_id_that_is_to_be_listed_stays_in_the_directory(tmp_path: Path) -> None:
    who, folder = newcomer(tmp_path, "10.0.0.7:31337"), tmp_path / "new"
    assert "give --dir DIR" in str(not_listed(ConfigError("refused"), who, None))
    said = str(not_listed(ConfigError("refused"), who, str(folder)))
    kept = folder / "identity.key"
    assert f"as {who.peer}, then" in said and stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert identity.load(kept).peer_id == who.peer
    before = kept.read_bytes()
    done = CliRunner().invoke(cli, ["id", str(folder)], standalone_mode=False, catch_exceptions=False)
    assert done.output.strip() == who.peer, "who forgot it can ask"
    not_listed(ConfigError("refused"), newcomer(folder, "10.0.0.7:31337"), str(folder))
    assert kept.read_bytes() == before, "another try changes nothing"
