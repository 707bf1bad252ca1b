"""`check-config` of presets and files: what a run weighs is what the planner says."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.main import cli
from dilocoxd.models import ModelConfig
from dilocoxd.trainer.whole import flat_layout


def check(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["check-config", *arguments], standalone_mode=False, catch_exceptions=False)


def test_a_preset_is_checked_by_name_and_weighed() -> None:
    done = check("small")
    assert done.return_value == 0
    manifest = new_manifest("small", {})
    count = flat_layout(ModelConfig.from_section(manifest.model)).numel
    lines = done.output.splitlines()
    assert lines[0].startswith("ok  run small-")
    assert lines[1] == f"model     {count:,} parameters"
    assert [line.split()[0] for line in lines] == ["ok", "model", "memory", "disk", "payload", "exchange"]


def test_a_faster_link_is_faster_and_a_smaller_payload_too() -> None:
    plain, sparse = (json.loads(check(name, "--json").output)["figures"] for name in ("small", "small:sparseloco"))
    for found in (plain, sparse):
        times = [found["exchange_s"][mbit] for mbit in ("10", "100", "1000")]
        assert times == sorted(times, reverse=True) and times[-1] > 0
        wire_s = found["payload_bytes"] * 8 / 10e6
        assert times[0] > wire_s, "no link is faster than its line rate"
    assert sparse["payload_bytes"] < plain["payload_bytes"]
    assert sparse["exchange_s"]["10"] < plain["exchange_s"]["10"]


def test_a_run_directory_is_weighed_for_its_own_stages(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path, stages in ((one, "1"), (two, "2")):
        arguments = ["init", "tiny", "--dir", str(path), "--stages", stages]
        CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)
    bytes_of = [json.loads(check(str(path), "--json").output)["figures"]["trainer_bytes"] for path in (one, two)]
    assert bytes_of[1] < bytes_of[0]


def test_unknown_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = check("small:sparse")
    assert done.return_value == 78 and "there is no strategy 'sparse'; use one of" in done.stderr
    monkeypatch.chdir(tmp_path)
    done = check("smal")
    assert done.return_value == 78 and "there is no preset and no file 'smal'; use one of" in done.stderr


def test_a_file_that_is_called_like_a_preset_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small").write_text(new_manifest("tiny", {"run": {"name": "mine"}}).to_toml())
    assert check("small").output.startswith("ok  run mine-")
