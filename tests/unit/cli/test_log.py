"""`dilocoxd log` on a real log: what it shows, and what it says of damage."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.declared.chain import log
from dilocoxd.cli.log import opened, stored_entries
from dilocoxd.cli.screens.rounds import contributor_text
from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.ids import Attempt, Digest, PhaseId
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore
from dilocoxd.store.rundir import RunDir, create_run_dir
from dilocoxd.swarm.discovery.identity import load_or_create
from dilocoxd.wire.entry import Signature, SignedEntry, SignedVote
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
    expected = {"peer": "QmA", "phase": 2, "tokens": 100, "inner_steps": 10, "base_round": 2}
    assert found[1]["contributors"] == [expected]
    assert found[1]["payload_bytes"] == 3000 + 17 + 4096
    table = invoke("show", str(run_dir.path)).output
    assert "QmA (100)" in table
    assert found[0]["entry_hash"][:12] in table


def test_show_tells_what_came_late(tmp_path: Path, run_dir: RunDir) -> None:
    manifest, site = run_dir.load()
    me = load_or_create(run_dir.identity(site)).peer_id
    chain = opened(run_dir)
    for phase in (4, 7):
        entry = signed(chain.height, chain.head).entry
        ours = dataclasses.replace(entry.contributions[0], peer=me, phase=phase)
        signature = Signature(b"key", b"signature")
        vote = SignedVote(me, Attempt(0), 0, signature)
        entry = dataclasses.replace(entry, run_id=manifest.run_id, contributions=(ours,))
        with payload_file(chain.height) as source:
            chain.append(SignedEntry(entry, (signature,), (vote,)), source)
    for phase, carried in ((4, (4,)), (7, (2, 3, 7)), (9, (8, 9))):
        content = tuple((PhaseId(number), 1) for number in carried)
        KeptWorkStore(run_dir.own_work).keep(KeptWork(PhaseId(phase), 3, Digest(bytes(32)), content=content), [])
    (last,) = json.loads(invoke("show", "--json", "--last", "1", str(run_dir.path)).output)
    assert last["contributors"][0]["carries"] == [2, 3]
    rest = json.loads(invoke("show", "--json", str(run_dir.path)).output)[:-1]
    assert not any("carries" in c for row in rest for c in row["contributors"])
    table = invoke("show", str(run_dir.path)).output
    assert table.count("late:") == 1
    (shown,) = stored_entries(run_dir, 1)
    text = contributor_text(shown.entry.contributors[0], shown.carries[me])
    assert text.endswith("(100; late: phases 2, 3)")


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
    """And is told so: the command is no daemon, and nobody has started another one."""
    held = rf"process {os.getpid()} holds this directory, as a running daemon does; stop it and give this command again"
    with run_dir.locked(), pytest.raises(ConfigError, match=held) as refused:
        invoke("verify", str(run_dir.path))
    assert "another" not in str(refused.value)
    assert "daemon of RUN_DIR must be stopped" in invoke("verify", "--help").output
