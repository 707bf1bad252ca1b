"""Real daemons, two stages each, and the single-process engine hold the same shared state at every height, bit for bit.

The log says who took part with how many steps; every tensor is computed again from the manifest (harness/reference.py).
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dilocoxd.outerworker.plan import Plan, make_plan
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.identity import load
from dilocoxd.wire.entry import Entry
from tests.harness.reference import ReferenceRun, first_difference
from tests.harness.runs import found_run, join_run
from tests.harness.sites import SiteProcess, sites
from tests.harness.training import PATIENCE_S, founder_options, log_of, site_options, wait_joint_round, write_corpus

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

JOINT_ROUNDS = 4
PATIENT = {"round.grace_min_s": "30.0", "round.grace_max_s": "60.0"}
"""Nobody is left out of a round because this machine is slow."""
DILOCO = {"strategy.delay": "none", "strategy.codec": "fp32", "outer.lr": "0.7", "outer.momentum": "0.9"}
DILOCOX = {
    "strategy.delay": "phase",
    "strategy.codec": "int4",
    "strategy.error_feedback": "none",
    "outer.lr": "0.4",
    "outer.momentum": "0.6",
}
"""As the authors trained 1.3B parameters, less the feedback: what an owner's second encoding lost goes another way when
a segment changes its owner, owners follow from measured bandwidth, and the log does not name them. With feedback, low
rank and schedule: tests/unit/outerworker/test_engine_parity.py, where owners stay."""


@dataclass
class Trained:
    """Two sites that trained some rounds together and have stopped, and what their exchanges counted."""

    members: tuple[SiteProcess, SiteProcess]
    bytes_sent: dict[int, int]
    """By round: of both sites together."""


def trained(folder: Path, settings: dict[str, str]) -> Trained:
    options = [part for name, value in {**settings, **PATIENT}.items() for part in ("--set", f"{name}={value}")]
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
            rows = [{row["round"]: row for row in site.rounds()} for site in (a, b)]
            assert [b.stop(), a.stop()] == [0, 0]
    plain = [{n for n, row in each.items() if row["is_contributor"] and row["attempts"] == 1} for each in rows]
    return Trained((a, b), {n: rows[0][n]["bytes_sent"] + rows[1][n]["bytes_sent"] for n in plain[0] & plain[1]})


def until_the_first_leaves(entries: list[Entry], num_members: int) -> list[Entry]:
    """The engine has one residual per segment, wherever its owner is: so while owners stay what they are."""
    joined = next(n for n, entry in enumerate(entries) if len(entry.contributions) == num_members)
    alone = (n for n, entry in enumerate(entries[joined:], joined) if len(entry.contributions) < num_members)
    return entries[: next(alone, len(entries))]


def assert_bytes_are_the_formula(bytes_sent: dict[int, int], entries: list[Entry], plan: Plan) -> None:
    """Reduce-scatter and gather of M sites: each segment goes M - 1 times to its owner and M - 1 times back."""
    others = 1
    assert len(bytes_sent) >= JOINT_ROUNDS
    for number, counted in bytes_sent.items():
        if number >= len(entries):
            continue
        payload = sum(map(sum, plan.payload_bytes_at(entries[number].lowrank_r)))
        assert counted == pytest.approx(2 * others * payload, rel=0.02), number


@pytest.mark.parametrize("settings", [DILOCO, DILOCOX], ids=["diloco", "dilocox"])
def test_daemons_and_engine_hold_the_same_bits(tmp_path: Path, settings: dict[str, str]) -> None:
    done = trained(tmp_path, settings)
    entries = [signed.entry for signed in log_of(done.members[1]).entries()]
    members = {}
    for member in done.members:
        run_dir = open_run_dir(member.run_dir)
        manifest, config = run_dir.load()
        members[load(run_dir.identity(config)).peer_id] = member.run_dir
    entries = until_the_first_leaves(entries, len(members))
    both = [entry for entry in entries if len(entry.contributions) == len(members)]
    assert len(both) >= JOINT_ROUNDS
    torch.set_num_threads(1)
    assert_bytes_are_the_formula(done.bytes_sent, entries, make_plan(manifest))
    run = ReferenceRun(manifest, members)
    assert first_difference(run, entries) is None
