"""Exports while a daemon goes on: what leads to a round is dropped after it was chosen, or before it could be held.

The daemon's own code drops it, at the moment that matters; no daemon runs, for none can be told when.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import prune
from dilocoxd.trained.export import Wanted, export
from dilocoxd.trained.found import StoredRun, find_run
from dilocoxd.trained.load import load_model
from dilocoxd.trained.proof.check import check_export
from dilocoxd.trained.tokenizer import TokenizerFiles
from dilocoxd.trainer.whole import flat_layout
from dilocoxd.wire.entry import genesis_hash
from tests.harness.outer_worker.run_on_disk import RunOnDisk, make_run
from tests.unit.trained.test_export import loaded

ROUNDS = 5


@pytest.fixture
def run(tmp_path: Path) -> RunOnDisk:
    return make_run(tmp_path / "site", rounds=ROUNDS, snapshots_at=(0, 2, 4))


def drop_all(run: RunOnDisk, keep: int = 1) -> None:
    """What a daemon does after its newest snapshot."""
    manifest = run.manifest
    prune(run.run_dir.snapshots, keep, ROUNDS)
    EntryLog(run.run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256())).drop_payloads(ROUNDS)


def at_first_word(action: Callable[[], None]) -> Callable[[str], None]:
    """Told of progress, does this once."""
    left = [action]
    return lambda _: left.pop()() if left else None


def files_of(run: RunOnDisk) -> TokenizerFiles:
    return TokenizerFiles(run.run_dir.path / "tokenizer")


def flat(run: RunOnDisk, out: Path) -> torch.Tensor:
    tensors = loaded(out)
    layout = flat_layout(ModelConfig.from_section(run.manifest.model))
    return torch.cat([tensors[param.name].flatten() for param in layout.params])


@pytest.mark.parametrize("average", [1, 2, 4])
def test_what_was_chosen_stays_readable(run: RunOnDisk, tmp_path: Path, average: int) -> None:
    dropping = at_first_word(lambda: drop_all(run, keep=0))
    found = find_run(run.run_dir.path)
    export(found, Wanted(ROUNDS, average), files_of(run), tmp_path / "out", dropping)
    assert not found.rounds(), "nothing was dropped meanwhile"
    mean = torch.stack(run.anchors[ROUNDS + 1 - average :]).double().mean(0)
    assert torch.allclose(flat(run, tmp_path / "out").double(), mean, atol=1e-7)


def test_a_mean_is_verified_while_it_is_dropped(run: RunOnDisk, tmp_path: Path) -> None:
    found = find_run(run.run_dir.path)
    export(found, Wanted(ROUNDS, 2), files_of(run), tmp_path / "out", lambda _: None)
    checked = check_export(found, files_of(run), tmp_path / "out", at_first_word(lambda: drop_all(run)))
    assert checked.differing == ()
    assert find_run(run.run_dir.path).rounds() == [4]


@dataclass(frozen=True, slots=True)
class MovingRun(StoredRun):
    """A run whose daemon does something as soon as somebody has looked which snapshots there are."""

    moves: tuple[list[Callable[[], None]]] = ([],)

    def rounds(self) -> list[int]:
        found = StoredRun.rounds(self)
        if self.moves[0]:
            self.moves[0].pop()()
        return found


def test_a_newer_round_is_taken_if_the_newest_is_gone(run: RunOnDisk, tmp_path: Path) -> None:
    aside, place = tmp_path / "aside", run.run_dir.snapshots / "4"
    place.rename(aside)

    def move() -> None:
        aside.rename(place)
        drop_all(run)

    found = MovingRun(run.manifest, run.run_dir, run.run_dir.snapshots, None, ([move],))
    done = export(found, Wanted(), files_of(run), tmp_path / "out", lambda _: None)
    assert done.round == 4
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[4])


def test_what_nothing_leads_to_says_what_to_do(run: RunOnDisk, tmp_path: Path) -> None:
    drop_all(run)
    with pytest.raises(ConfigError, match=r"round 3 cannot be made again here.*choose one of rounds 4,.*--now"):
        export(find_run(run.run_dir.path), Wanted(4, 2), files_of(run), tmp_path / "out", lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["site"], "something was left behind"
    shutil.rmtree(run.run_dir.snapshots / "4")
    with pytest.raises(ConfigError, match="no snapshot"):
        export(find_run(run.run_dir.path), Wanted(), files_of(run), tmp_path / "out", lambda _: None)


def test_models_are_loaded_so_too(run: RunOnDisk) -> None:
    """`generate` and `evaluate` of a round between snapshots."""
    _, anchor = load_model(find_run(run.run_dir.path), 3, at_first_word(lambda: drop_all(run)))
    assert anchor.state_digest == run.digests[3]
