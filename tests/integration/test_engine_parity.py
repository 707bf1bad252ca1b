"""Real daemons, two stages each, and the single-process engine hold the same shared state at every height, bit for bit.

The log says who took part with how many steps; every tensor is computed again from the manifest (harness/reference.py).
"""

from pathlib import Path

import pytest
import torch

from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.identity import load
from tests.harness.reference import ReferenceRun, first_difference
from tests.harness.runs import found_run, join_run
from tests.harness.sites import SiteProcess, sites
from tests.harness.training import PATIENCE_S, founder_options, log_of, site_options, wait_joint_round, write_corpus

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

JOINT_ROUNDS = 4
DILOCO = {"strategy.delay": "none", "strategy.codec": "fp32", "outer.lr": "0.7", "outer.momentum": "0.9"}


def trained(folder: Path, settings: dict[str, str]) -> tuple[SiteProcess, SiteProcess]:
    """Two sites that trained some rounds together and have stopped."""
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    write_corpus(folder)
    a = found_run(folder, "a", *founder_options(folder, inner_steps=25), *options, "--stages", "2")
    with sites(a):
        a.start()
        a.wait_height(1, PATIENCE_S)
        b = join_run(folder, "b", a, *site_options(folder, stages=2))
        with sites(b):
            b.start()
            wait_joint_round([a, b])
            height = b.status()["height"]
            b.wait_height(height + JOINT_ROUNDS, PATIENCE_S)
            assert [b.stop(), a.stop()] == [0, 0]
    return a, b


@pytest.mark.parametrize("settings", [DILOCO], ids=["diloco"])
def test_daemons_and_engine_hold_the_same_bits(tmp_path: Path, settings: dict[str, str]) -> None:
    a, b = trained(tmp_path, settings)
    entries = [signed.entry for signed in log_of(b).entries()]
    members = {}
    for member in (a, b):
        run_dir = open_run_dir(member.run_dir)
        manifest, config = run_dir.load()
        members[load(run_dir.identity(config)).peer_id] = member.run_dir
    both = [entry for entry in entries if len(entry.contributions) == len(members)]
    assert len(both) >= JOINT_ROUNDS
    torch.set_num_threads(1)
    run = ReferenceRun(manifest, members)
    assert first_difference(run, entries) is None
