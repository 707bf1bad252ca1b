"""`id`, `identity new`, and the remedies that lead there, followed word by word until the site has a key again."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.main import cli
from dilocoxd.cli.run_dir.admission import own_membership
from dilocoxd.config.manifest import load_manifest
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.store.rundir import RunDir, open_run_dir


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Of a site that has worked: it owes something, and has voted."""
    invoke("init", "tiny", "--dir", str(tmp_path / "run"))
    found = open_run_dir(tmp_path / "run")
    found.own_work.mkdir(parents=True)
    (found.own_work / "5").write_text("given to round 7")
    (found.path / "promise").write_text("a vote")
    return found


def peer_id(run_dir: RunDir) -> str:
    return invoke("id", str(run_dir.path)).output.strip()


def test_id_is_printed(run_dir: RunDir) -> None:
    found = json.loads(invoke("id", "--json", str(run_dir.path)).output)
    assert found["peer_id"] == peer_id(run_dir) and found["run_id"].startswith("tiny-")
    assert re.fullmatch(r"Qm\w{44}", peer_id(run_dir))


def test_new_identity_takes_nothing_of_the_old_one_along(run_dir: RunDir) -> None:
    before, key = peer_id(run_dir), (run_dir.path / "identity.key").read_bytes()
    done = invoke("identity", "new", str(run_dir.path))
    assert peer_id(run_dir) != before and peer_id(run_dir) in done.output
    (aside,) = run_dir.path.glob("old-identity-*")
    assert (aside / "identity.key").read_bytes() == key, "nothing is lost"
    assert (aside / "site" / "work" / "5").exists() and (aside / "promise").exists()
    assert not run_dir.own_work.exists() and not (run_dir.path / "promise").exists()


def test_new_identity_of_a_founder_is_a_member_again(run_dir: RunDir) -> None:
    before = run_dir.membership.read_text()
    invoke("identity", "new", str(run_dir.path))
    manifest = load_manifest(run_dir.run_toml)
    proof = own_membership(run_dir, manifest, PeerId(peer_id(run_dir)))
    assert proof is not None and run_dir.membership.read_text() != before


def test_new_identity_without_key_and_invite_needs_a_new_link(run_dir: RunDir) -> None:
    run_dir.authority_key.unlink()
    run_dir.invite.unlink()
    done = invoke("identity", "new", str(run_dir.path))
    assert "join again with a new link" in done.output and not run_dir.membership.exists()


@pytest.mark.parametrize("harm", ["missing", "damaged"])
@pytest.mark.remedy("finding:identity")
def test_remedy_of_a_key_that_is_gone_works(run_dir: RunDir, harm: str) -> None:
    key = run_dir.path / "identity.key"
    if harm == "missing":
        key.unlink()
    else:
        key.write_bytes(b"no key")
        key.chmod(0o600)
    with pytest.raises(ConfigError, match=harm) as refused:
        invoke("run", str(run_dir.path), "--port", "0", "--api-port", "0")
    remedy = re.search(r"make a new one with: dilocoxd (.*)", str(refused.value))
    assert remedy is not None
    assert invoke(*shlex.split(remedy[1])).return_value == 0
    assert peer_id(run_dir)


def test_running_daemon_keeps_its_identity(run_dir: RunDir) -> None:
    with run_dir.locked(), pytest.raises(ConfigError, match="holds this directory"):
        invoke("identity", "new", str(run_dir.path))
