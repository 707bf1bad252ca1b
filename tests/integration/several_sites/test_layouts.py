"""Sites whose trainers are laid out differently train one model: one process here, a mesh of four there.

The second site stops and starts again in other layouts: its moments come along, and nobody outside can tell.
"""

from pathlib import Path

import pytest

from dilocoxd.cli.main import cli
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites
from tests.harness.running.training import (
    PATIENCE_S,
    assert_logs_agree,
    assert_states_agree,
    founder_options,
    site_options,
    wait_contributions_after,
    wait_joint_round,
    write_corpus,
)

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

RANKS = 4
LAYOUTS = (
    {"pipeline": 2, "replicate": 1, "shard": 2},
    {"pipeline": 1, "replicate": 2, "shard": 2},
    {"pipeline": 1, "replicate": 1, "shard": 4},
)


def lay_out(site: SiteProcess, layout: dict[str, int]) -> None:
    """What its operator does between two starts."""
    settings = [f"parallel.{name}={value}" for name, value in layout.items()]
    cli.main(["config", "set", str(site.run_dir), *settings], standalone_mode=False)


def test_a_mesh_of_four_and_one_process_train_one_model_in_any_layout(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    options = ["--set", "inner.optimizer=muon", "--set", "inner.batch_sequences=8"]
    a = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=8), *options)
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(tmp_path, "b", a, *site_options(tmp_path))
        lay_out(b, {**LAYOUTS[0]})
        with sites(b):
            steps = 0
            for number, layout in enumerate(LAYOUTS):
                lay_out(b, layout)
                height = a.status()["height"]
                b.start()
                if number == 0:
                    wait_joint_round([a, b])
                wait_contributions_after(b, height)
                assert_states_agree(a, b)
                status = b.status()
                assert len(status["workers"]["trainer"]["pids"]) == RANKS
                # Moments and place in the data are those of the layout before.
                assert status["phase"]["global_step"] > steps
                steps = status["phase"]["global_step"]
                assert b.stop() == 0
            assert a.stop() == 0
            assert_logs_agree(a, b)
