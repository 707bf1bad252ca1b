"""`dilocoxd start --init` killed behind each change that it makes on the disk: no run that lacks its weights, no folder
in which the same command is refused, and nothing left over."""

import os
import stat
from pathlib import Path

import pytest

from dilocoxd.cli.run_dir.admission import invite_of, own_membership
from dilocoxd.config.manifest import Manifest
from dilocoxd.store import snapshots
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.wire.entry import genesis_hash
from tests.harness.killed_command import contents, run_command
from tests.harness.published.directory import LINES, VOCAB, publish
from tests.harness.running.warm import load_families
from tests.unit.models.families import FAMILY_CONFIGS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MOMENTS = (
    *("anchor.safetensors", "site.toml.tmp", "identity.key", "invite.tmp", "tokenizer.json", "snapshots/0"),
    *("run.toml.tmp", "run.toml"),
)
"""What has just appeared when it dies: the weights, then files of the run in this order."""
NUM_CHANGES = int(os.environ.get("DILOCOXD_EACH_KILL", "0"))
"""So many changes, each of them, in place of those; a start of this model makes 45."""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """`dilocoxd start` with a model's weights and a text that is prepared already."""
    load_families()
    folder = tmp_path_factory.mktemp("given")
    publish(folder / "model", FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB})
    (folder / "text.txt").write_text("".join(LINES), encoding="utf-8")
    found = ["start", "tiny", "--no-run", "--data", f"numbers={folder / 'text.txt'}", "--cache", str(folder / "cache")]
    return [*found, "--init", str(folder / "model"), "--dir", "run"]


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Files of a run directory that nobody disturbed; afterwards the text is prepared for all others."""
    place = tmp_path_factory.mktemp("undisturbed")
    status, said = run_command(command, place)
    assert status == 0, said
    return set(contents(place / "run"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def require_whole(folder: Path, names: set[str]) -> Manifest:
    """All that a run from weights needs, for this run, and these files and no others."""
    run_dir = open_run_dir(folder)
    manifest, site = run_dir.load()
    index = snapshots.verify(run_dir.snapshots / "0")
    assert index.state_digest == manifest.init.state_digest
    assert index.chain_head == genesis_hash(manifest.run_id, manifest.sha256()).hex()
    peer = load(run_dir.identity(site)).peer_id
    assert own_membership(run_dir, manifest, peer) is not None
    invite = invite_of(run_dir)
    assert invite is not None
    assert contents(folder).keys() == names
    return manifest


@pytest.mark.parametrize("moment", range(1, NUM_CHANGES + 1) if NUM_CHANGES else MOMENTS)
def test_killed_start_leaves_no_run_that_lacks_something_and_once_more_works(
    command: list[str], whole: set[str], tmp_path: Path, moment: int | str
) -> None:
    place = _made(tmp_path / "place")
    status, said = run_command(command, place, moment)
    assert status == -9, said
    if not (place / "run" / "run.toml").exists():
        status, said = run_command(command, place)
        assert status == 0, said
    require_whole(place / "run", whole)
    assert [path.name for path in place.iterdir()] == ["run"]


def test_state_and_tokenizer_of_a_killed_start_are_not_the_next_ones(
    command: list[str], whole: set[str], tmp_path: Path
) -> None:
    place = _made(tmp_path / "place")
    assert run_command(command, place, "run.toml.tmp")[0] == -9
    of_weights = {name for name in whole if name.startswith(("tokenizer/", "snapshots/"))}
    assert of_weights < contents(place / "run").keys()
    from_scratch = [*command[: command.index("--init")], *command[command.index("--dir") :]]
    assert run_command(from_scratch, place)[0] == 0
    assert contents(place / "run").keys() == whole - of_weights


@pytest.mark.parametrize("moment", ["anchor.safetensors", "run.toml"])
def test_start_without_a_name_clears_away_what_a_killed_one_left(
    command: list[str], whole: set[str], tmp_path: Path, moment: str
) -> None:
    place = _made(tmp_path / "place")
    command = command[: command.index("--dir")]
    assert run_command(command, place, moment)[0] == -9
    assert all(left.name.startswith(".") for left in place.iterdir()), "no folder that looks like a run's"
    assert run_command(command, place)[0] == 0
    (made,) = place.iterdir()
    manifest = require_whole(made, whole)
    assert made.name == manifest.run_id
    assert stat.S_IMODE(made.stat().st_mode) == 0o700, "it holds a private key"


def test_what_lies_in_the_folder_of_a_killed_start_is_not_taken_from_there(command: list[str], tmp_path: Path) -> None:
    place = _made(tmp_path / "place")
    assert run_command(command, place, "run.toml.tmp")[0] == -9
    before = contents(place / "run")
    status, said = run_command([*command, "--tokenizer", "run/tokenizer"], place)
    assert status == 78, said
    assert "--tokenizer run/tokenizer: lies in run, the run directory itself; give --dir another directory" in said
    assert contents(place / "run") == before, "clearing it away would have cleared its source"
