"""`dilocoxd log` on a real log: what it shows, and what it says of damage."""

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.log import log, opened
from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import RunDir, create_run_dir
from tests.unit.store.chains import payload_file, signed


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run directory with three entries."""
    manifest = manifest_from_tables(preset_tables("tiny"), source="tiny")
    made = create_run_dir(tmp_path / "run", manifest, SiteConfig())
    chain = opened(made)
    for index in range(3):
        entry = signed(index, chain.head)
        ours = dataclasses.replace(entry, entry=dataclasses.replace(entry.entry, run_id=manifest.run_id))
        with payload_file(index) as source:
            chain.append(ours, source)
    return made


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(log, arguments, standalone_mode=False, catch_exceptions=False)


def test_show_tells_who_contributed_what(run_dir: RunDir) -> None:
    found = json.loads(invoke("show", "--json", "--last", "2", str(run_dir.path)).output)
    assert [row["round"] for row in found] == [1, 2]
    assert found[1]["contributors"] == [{"peer": "QmA", "phase": 2, "tokens": 100, "inner_steps": 10}]
    assert found[1]["payload_bytes"] == 3000 + 17 + 4096
    table = invoke("show", str(run_dir.path)).output
    assert "QmA (100)" in table
    assert found[0]["entry_hash"][:12] in table


def test_verify_of_a_sound_log_exits_0_with_the_head(run_dir: RunDir) -> None:
    done = invoke("verify", str(run_dir.path))
    assert done.return_value == 0
    assert done.output.startswith("ok  3 entries, head ")


def test_verify_names_what_is_damaged_and_exits_1(run_dir: RunDir) -> None:
    victim = sorted(run_dir.log.iterdir())[1]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    done = invoke("verify", "--json", str(run_dir.path))
    assert done.return_value == 1
    found = json.loads(done.output)
    assert found["ok"] is False
    assert victim.name in found["problems"][0]


def test_log_of_a_running_daemon_is_left_alone(run_dir: RunDir) -> None:
    with run_dir.locked(), pytest.raises(ConfigError, match="another daemon"):
        invoke("verify", str(run_dir.path))
