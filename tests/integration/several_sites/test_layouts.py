"""Sites that are laid out differently train one model: one trainer and one outer worker here, a mesh of four trainers
and an outer worker of several processes there; in the last layout it computes in bfloat16, too.

The second site stops and starts again in other layouts: its moments and error feedback come along, and nobody outside
can tell.
"""

import os
import signal
from pathlib import Path

import pytest

from dilocoxd.cli.main import cli
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
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
LAYOUTS: tuple[dict[str, int | str], ...] = (
    {"parallel.pipeline": 2, "parallel.replicate": 1, "parallel.shard": 2, "workers.outer_parts": 3},
    {"parallel.pipeline": 1, "parallel.replicate": 2, "parallel.shard": 2, "workers.outer_parts": 1},
    {"parallel.replicate": 1, "parallel.shard": 2, "parallel.tensor": 2, "parallel.sequence": "true",
     "workers.outer_parts": 2, "parallel.dtype": "bfloat16"},
)  # fmt: skip


def lay_out(site: SiteProcess, layout: dict[str, int | str]) -> None:
    """What its operator does between two starts."""
    settings = [f"{name}={value}" for name, value in layout.items()]
    cli.main(["config", "set", str(site.run_dir), *settings], standalone_mode=False)


def lose_a_part(site: SiteProcess) -> None:
    """SIGKILL of one process of its outer worker, which another takes the place of."""
    before = site.status()["workers"]["outer"]["part_pids"]
    os.kill(before[1], signal.SIGKILL)

    def is_whole_again() -> bool:
        now = site.status()["workers"]["outer"]["part_pids"]
        return len(set(now)) == len(before) and 0 not in now and now[1] != before[1]

    wait_until(is_whole_again, "another process for the killed part", PATIENCE_S, site.describe)


def test_a_mesh_of_four_and_one_process_train_one_model_in_any_layout(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    settings = ("inner.optimizer=muon", "inner.batch_sequences=8", 'inner.dtypes_allowed=["bfloat16"]')
    options = [part for setting in settings for part in ("--set", setting)]
    a = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=4), *options)
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
                    lose_a_part(b)
                    height = a.status()["height"]
                wait_contributions_after(b, height + 1)  # what was under way may still be of the layout before
                assert_states_agree(a, b)
                status = b.status()
                assert len(status["workers"]["trainer"]["pids"]) == RANKS
                num_parts = int(layout["workers.outer_parts"])
                assert len(status["workers"]["outer"]["part_pids"]) == (num_parts if num_parts > 1 else 0)
                # Moments and place in the data are those of the layout before.
                assert status["phase"]["global_step"] > steps
                steps = status["phase"]["global_step"]
                assert b.stop() == 0
            assert a.stop() == 0
            assert_logs_agree(a, b)
