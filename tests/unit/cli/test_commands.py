"""Making run directories: what `start` and `init` write and print, and what `join` refuses before it calls anybody."""

import re
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.commands import announce_run, joined_run_dir, make_run, new_manifest
from dilocoxd.cli.main import cli
from dilocoxd.config.loading import validated
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.identity import load

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/QmNobody"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


def site(**network: Any) -> SiteConfig:
    return validated(SiteConfig, {"network": network}, source="test")


def test_init_makes_a_run_directory_and_prints_the_line_for_others(tmp_path: Path) -> None:
    path = tmp_path / "run"
    done = invoke("init", "tiny", "--dir", str(path), "--host", "127.0.0.1", "--port", "0", "--set", "outer.lr=0.5")
    run_dir = open_run_dir(path)
    manifest, made = run_dir.load()
    assert manifest.outer.lr == 0.5
    assert manifest.run.created
    identity = run_dir.identity(made)
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    wanted = f"dilocoxd join /ip4/127.0.0.1/tcp/{made.network.port}/p2p/{load(identity).peer_id}"
    assert wanted in done.output
    assert manifest.run_id in done.output


def test_run_toml_of_the_operator_is_a_target_too(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(new_manifest("tiny", {"strategy": {"inner_steps": 3}, "run": {"created": "x"}}).to_toml())
    invoke("init", str(own), "--dir", str(tmp_path / "run"))
    assert open_run_dir(tmp_path / "run").load()[0].strategy.inner_steps == 3


def test_warning_of_the_manifest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = new_manifest("tiny", {"outer": {"lr": 3.0}})
    announce_run(make_run(manifest, site(), str(tmp_path / "run")))
    assert re.search(r"warning: outer\.lr = 3\.0 .* stay below", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["join", "10.0.0.1"], "must look like /ip4/"),
        (["join", "/ip4/10.0.0.1/udp/1"], "only tcp is supported"),
        (["join", ADDRESS, "--set", "outer.lr=1"], "belongs to the run, which is fixed already"),
        (["start", "tinny"], "there is no preset and no file 'tinny'; use one of demo, small, tiny"),
        (["start", "tiny", "--set", "network.prot=1"], r"unknown field network.prot; did you mean network.port\?"),
        (["start", "tiny", "--port", "99999"], "network.port = 99999 is wrong: give a value of at most 65535"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        invoke(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_joining_again_keeps_the_directory_and_adds_the_new_address(tmp_path: Path) -> None:
    manifest = new_manifest("tiny", {})
    path = str(tmp_path / "run")
    first = joined_run_dir(manifest, site(bootstrap=[ADDRESS], port=5), path)
    peer = load(first.identity(first.load()[1])).peer_id
    other = "/ip4/127.0.0.1/tcp/2/p2p/QmOther"
    second = joined_run_dir(manifest, site(bootstrap=[other], port=6), path)
    _, kept = second.load()
    assert kept.network.bootstrap == (other, ADDRESS)
    assert kept.network.port == 5
    assert load(second.identity(kept)).peer_id == peer
    with pytest.raises(ConfigError, match="give --dir another directory"):
        joined_run_dir(new_manifest("tiny", {"seeds": {"data": 5}}), site(), path)
