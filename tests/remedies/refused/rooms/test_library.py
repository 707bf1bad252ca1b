"""Loops of one's own: what `describe` and `Site` refuse, and the same call as it is said."""

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from dilocoxd import Site, describe
from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.library.site import _losses
from dilocoxd.store.rundir import create_run_dir
from tests.remedies.refused.rooms.told import told
from tests.unit.library.test_site import PATIENCE_S, let_in, listening, run_of


class Counting(nn.Module):
    """Its counter is no number that can be averaged."""

    def __init__(self, is_left_out: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.scale = nn.Parameter(torch.zeros(2, dtype=torch.complex64), requires_grad=not is_left_out)


def test_modules_to_describe(tmp_path: Path) -> None:
    frozen = nn.Linear(2, 3).requires_grad_(False)
    with told("library/describe.py", "give the one that is trained"):
        describe(frozen, tmp_path / "m")
    describe(nn.Linear(2, 3), tmp_path / "m")
    with told("library/describe.py", "leave it out, for only floating-point parameters can be averaged"):
        describe(Counting(is_left_out=False), tmp_path / "m")
    describe(Counting(is_left_out=True), tmp_path / "m")
    (tmp_path / "file").touch()
    with told("library/describe.py", "give describe() another folder"):
        describe(nn.Linear(2, 3), tmp_path / "file")
    describe(nn.Linear(2, 3), tmp_path / "m")


def test_modules_and_runs_that_do_not_belong_together(tmp_path: Path) -> None:
    """The right one comes as far as the daemon, which is what is missing here; then one is there."""
    run_dir, path = run_of(tmp_path, batch_sequences=4), tmp_path / "theirs"
    tiny = create_run_dir(path, manifest_from_tables(preset_tables("tiny"), source="test"), SiteConfig())
    with told("library/site.py", "start one for a module of your own with `dilocoxd start --module DIR`"):
        Site(tiny.path, nn.Linear(2, 3), wait_s=0)
    with told("library/site.py", "your module has none; use the run's module"):
        Site(run_dir.path, nn.Linear(2, 3, bias=False), wait_s=0)
    with told("library/site.py", "the run's parameter VALUE is VALUE; use the run's module"):
        Site(run_dir.path, nn.Linear(2, 4), wait_s=0)
    more = nn.Linear(2, 3)
    more.register_parameter("other", nn.Parameter(torch.zeros(2)))
    with told("library/site.py", "the run has none; use the run's module"):
        Site(run_dir.path, more, wait_s=0)
    with told("library/site.py", "start it with `dilocoxd run VALUE`, and let one loop at a time come to it"):
        Site(run_dir.path, nn.Linear(2, 3), wait_s=0)
    with listening(run_dir) as server:
        daemon = threading.Thread(target=let_in, args=(server,), daemon=True)
        daemon.start()
        with Site(run_dir.path, nn.Linear(2, 3)) as site:
            with told("library/site.py", "start the run with a larger model.seq_len, or count samples"):
                site.step(1.0, tokens=4 * 32 + 1)
            assert site.step(1.0, tokens=4)  # samples
        daemon.join(PATIENCE_S)
        assert not daemon.is_alive()


def test_a_larger_seq_len_lets_a_step_count_more(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path, batch_sequences=8)
    with listening(run_dir) as server:
        daemon = threading.Thread(target=let_in, args=(server,), daemon=True)
        daemon.start()
        with Site(run_dir.path, nn.Linear(2, 3)) as site:
            assert site.step(1.0, tokens=4 * 32 + 1)
        daemon.join(PATIENCE_S)


@pytest.mark.parametrize("right", [[0.5, 0.25], 0.5])
def test_losses_of_a_loop(right: float | list[float]) -> None:
    with told("library/site.py", "let it return one for each batch, or leave it out"):
        _losses([])
    assert _losses(right).losses
