"""Real daemons of one or two stages and the single-process engine hold the same bits of shared state at every height.

The log says who took part with how many steps, the recordings say who reduced what, the trainers when they merged;
every tensor is computed again from the manifest (tests/harness/recorded/whole_run.py).
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.wire.entry import Entry
from tests.harness.recorded.segment_owners import Owners, owners_of
from tests.harness.recorded.whole_run import ReferenceRun, first_difference
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import PATIENCE_S, founder_options, log_of, site_options, write_corpus
from tests.harness.running.warm import STEP_VARIABLE

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

JOINT_ROUNDS = 4
STEP_S, SHORT_STEP_S = "0.08", "0.04"
"""Shortest inner steps: short where rank or H are to change within a few rounds. Each step of the founder is computed
again, those that it made while the other site began as well."""
PATIENT = {"round.grace_min_s": "30.0", "round.grace_max_s": "60.0"}
"""Nobody is left out of a round because this machine is slow."""
DILOCO = {"strategy.delay": "none", "strategy.codec": "fp32", "outer.lr": "0.7", "outer.momentum": "0.9"}
DELAYED = {"strategy.delay": "phase", "strategy.codec": "int4", "outer.lr": "0.4", "outer.momentum": "0.6"}
DILOCOX = {
    **DELAYED,
    "strategy.transform": "lowrank",
    "strategy.lowrank_r": "8",
    "strategy.inner_steps": "20",
    "schedule.kind": "adaptive",
    "schedule.window": "2",
    "schedule.energy_left": "0.5",
}
"""As its authors trained 107B: low rank and H follow the effective rank of what was committed."""
ARRIVAL = {
    "strategy.delay": "arrival",
    "strategy.codec": "int2",
    "outer.lr": "1.0",
    "outer.momentum": "0.0",
    "inner.optimizer": "muon",
    "inner.min_lr_ratio": "0.5",
}
"""What the strategy `default` is: anchors are merged in the middle of a phase."""
STREAMING = {
    **DILOCO,
    "strategy.delay": "streaming",
    "strategy.fragments": "3",
    "strategy.codec": "e3m0",
    "strategy.error_feedback": "none",
    "strategy.inner_steps": "10",
}
EAGER = {
    **DELAYED,
    "strategy.delay": "eager",
    "strategy.transform": "mask",
    "strategy.mask_keep_one_in": "4",
    "strategy.codec": "int8",
    "strategy.inner_steps": "10",
    "inner.optimizer": "muon",
    "inner.total_steps": "150",
    "schedule.kind": "qsr",
    "schedule.qsr_alpha": "0.0095",
    "schedule.inner_steps_min": "5",
    "schedule.inner_steps_max": "20",
}
"""Everything else that a strategy can be made of; H rises as the inner learning rate falls."""

OWN = {**DELAYED, "inner.batch_sequences_max": "6", "inner.dtypes_allowed": '["bfloat16"]'}
"""Sites choose batch and arithmetic for themselves."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpus and token cache of all tests here: tokenised once."""
    folder = tmp_path_factory.mktemp("shared")
    write_corpus(folder)
    return folder


@dataclass
class Trained:
    """Two sites that trained some rounds together and have stopped, and what their exchanges counted."""

    members: tuple[SiteProcess, SiteProcess]
    bytes_sent: dict[int, int]
    """By round: of both sites together."""


def trained(
    folder: Path, shared: Path, settings: dict[str, str], stages: tuple[int, int], own: tuple[str, ...] = ()
) -> Trained:
    """`own`: what the second site sets for itself."""
    every = {**PATIENT, **settings}
    options = [part for name, value in every.items() for part in ("--set", f"{name}={value}")]
    step_s = SHORT_STEP_S if "schedule.kind" in settings else STEP_S
    a = found_run(folder, "a", *founder_options(shared, inner_steps=12), *options, "--stages", str(stages[0]))
    with sites(a):
        start(a, step_s)
        a.wait_height(1, PATIENCE_S)
        b = join_run(folder, "b", a, *site_options(shared, stages=stages[1]), *own)
        with sites(b):
            start(b, step_s)
            wait_until(lambda: len(plain_rounds(a, b)) >= JOINT_ROUNDS, "rounds of both", PATIENCE_S, b.describe)
            counted = plain_rounds(a, b)
            assert [b.stop(), a.stop()] == [0, 0]
    return Trained((a, b), counted)


def start(site: SiteProcess, step_s: str) -> None:
    """The real daemon; it also writes down when its trainers take which anchor."""
    site.environment[STEP_VARIABLE] = step_s
    site.start_command([sys.executable, "-m", "tests.harness.running.daemon_that_logs_anchors", str(site.run_dir)])


def plain_rounds(*members: SiteProcess) -> dict[int, int]:
    """Rounds that all of these sites contributed to at the first attempt, and the bytes that they sent for them."""
    rows = [{row["round"]: row for row in member.rounds()} for member in members]
    plain = [{n for n, row in each.items() if row["is_contributor"] and row["attempts"] == 1} for each in rows]
    return {n: sum(each[n]["bytes_sent"] for each in rows) for n in set.intersection(*plain)}


def assert_bytes_are_the_formula(bytes_sent: dict[int, int], entries: list[Entry], plan: OuterPlan) -> None:
    """Reduce-scatter and gather of M sites: each segment goes M - 1 times to its owner and M - 1 times back."""
    others = 1
    assert len(bytes_sent) >= JOINT_ROUNDS
    for number, counted in bytes_sent.items():
        if number >= len(entries):
            continue
        payload = sum(map(sum, plan.payload_bytes_at(entries[number].lowrank_r)))
        assert counted == pytest.approx(2 * others * payload, rel=0.02), number


def known(entries: list[Entry], owners: Owners) -> list[Entry]:
    """As far as owners are known: the last entry may have been decided as one of the two had left."""
    return entries[: next((n for n, entry in enumerate(entries) if entry.round not in owners), len(entries))]


@pytest.mark.parametrize(
    ("settings", "stages", "own"),
    [
        (DILOCO, (2, 2), ()),
        (DILOCOX, (2, 2), ()),
        (EAGER, (1, 2), ()),
        (ARRIVAL, (1, 1), ()),
        (STREAMING, (1, 2), ()),
        (OWN, (1, 1), ("--set", "parallel.batch_sequences=6", "--set", "parallel.dtype=bfloat16")),
    ],
    ids=["diloco", "dilocox", "eager-mask-muon-qsr", "arrival", "streaming", "own-batch-and-dtype"],
)
def test_daemons_and_engine_hold_the_same_bits(
    tmp_path: Path, shared: Path, settings: dict[str, str], stages: tuple[int, int], own: tuple[str, ...]
) -> None:
    done = trained(tmp_path, shared, settings, stages, own)
    members = {}
    for member in done.members:
        run_dir = open_run_dir(member.run_dir)
        manifest, config = run_dir.load()
        members[load(run_dir.identity(config)).peer_id] = member.run_dir
    owners = owners_of(members)
    entries = known([signed.entry for signed in log_of(done.members[1]).entries()], owners)
    both = [entry for entry in entries if len(entry.contributions) == len(members)]
    assert len(both) >= JOINT_ROUNDS
    torch.set_num_threads(1)
    assert_bytes_are_the_formula(done.bytes_sent, entries, make_plan(manifest))
    run = ReferenceRun(manifest, members, owners)
    assert first_difference(run, entries) is None
    is_constant = manifest.schedule.kind == "constant"
    assert is_constant == (len({(e.next_lowrank_r, e.next_inner_steps) for e in entries}) == 1)
