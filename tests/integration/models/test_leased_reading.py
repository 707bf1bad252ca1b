"""Three sites read a token store while one is killed, two go on apart, one comes late and one leaves: counted sample by
sample.

Real daemons, outer workers, network and logs; trainers have no model and note what they are told to read.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from dilocoxd.daemon.chain.reading_plan import lease_rules
from dilocoxd.ids import PeerId
from dilocoxd.machines.reading.leases import Leases, leases_of
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.tokens.store import INDEX, ShardInfo, StoreIndex
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.training import log_of
from tests.harness.synthetic.trainer import READ_LOG_VARIABLE, STEP_S_VARIABLE, TOKENS_PER_STEP

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE_S = 120
NUM_TOKENS = 1 << 22
AHEAD, ALONE = 12, 2
"""Entries that each of two branches has when they meet."""
OPTIONS = [
    "--set", "strategy.inner_steps=5", "--set", "strategy.extend_steps_max=40", "--set", "strategy.codec=\"fp16\"",
    "--set", "data.evaluate_every_rounds=0", "--set", f"model.seq_len={TOKENS_PER_STEP}",
    "--set", "inner.batch_sequences=1", "--set", "inner.microbatches=1",
]  # fmt: skip


def write_store(folder: Path) -> Path:
    """Zeros: only sample numbers matter here."""
    folder.mkdir()
    with (folder / "train-00000.bin").open("wb") as file:
        file.truncate(2 * NUM_TOKENS)
    np.asarray([NUM_TOKENS], dtype="<i8").tofile(folder / "train-00000.ends")
    shard = ShardInfo("train-00000", NUM_TOKENS, 1, "0" * 64, "0" * 64)
    (folder / INDEX).write_bytes(StoreIndex("uint16", 300, None, "", (shard,)).canonical_bytes())
    return folder


def start(site: SiteProcess, step_s: float) -> None:
    site.environment[STEP_S_VARIABLE] = str(step_s)
    site.environment[READ_LOG_VARIABLE] = str(site.run_dir.parent / f"{site.name}.read")
    site.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(site.run_dir)])


def peer_id(site: SiteProcess) -> PeerId:
    return PeerId(wait_until(lambda: site.status().get("peer_id"), site.name, PATIENCE_S, site.describe))


def told(site: SiteProcess) -> dict[int, list[int]]:
    """By phase, the samples that the trainer was told to read."""
    rows = [json.loads(line) for line in (site.run_dir.parent / f"{site.name}.read").read_text().splitlines()]
    return {
        row["phase"]: [
            sample for a, b in zip(row["samples"][::2], row["samples"][1::2], strict=True) for sample in range(a, b)
        ]
        for row in rows
    }


def phases_of_lost_branches(members: Iterable[SiteProcess]) -> set[tuple[str, int]]:
    """(site, phase) of what a site had contributed on a branch that it left."""
    found = set()
    for site in members:
        path = site.run_dir / "logs" / "events.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        if any(one["event"] == "fork.resolved" and one["is_rolled_back"] for one in records):
            returned = [one for one in records if one["event"] == "contribution.returned" and not one["is_withdrawn"]]
            found |= {(site.name, one["phase"]) for one in returned}
    return found


def held(leases: Leases) -> set[int]:
    queues = [queue for lanes in (*leases.doors, *leases.sites.values()) for queue in lanes.queues]
    return {sample for queue in (*queues, leases.returned) for part in queue for sample in range(part.start, part.stop)}


def test_every_sample_is_in_the_model_once_or_waits(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store")
    first = found_run(tmp_path, "first", *OPTIONS, "--data", f"zeros={store}")
    manifest, _ = open_run_dir(first.run_dir).load()
    assert [(s.name, s.num_tokens) for s in manifest.data.sources] == [("zeros", NUM_TOKENS)]
    with sites(first):
        start(first, 0.05)
        killed = join_run(tmp_path, "killed", first, "--data", f"zeros={store}")
        late = join_run(tmp_path, "late", first, "--data", f"zeros={store}")
        members = (first, killed, late)
        with sites(killed, late):
            start(killed, 0.08)
            ids = {peer_id(site): site for site in (first, killed)}
            killed.wait_height(6, PATIENCE_S)
            killed.kill_tree()
            first.wait_height(first.status()["height"] + AHEAD, PATIENCE_S)
            first.kill_tree()
            # A branch of its own, on the newest state that it had.
            start(killed, 0.3)
            height = wait_until(lambda: killed.status().get("height"), "a state", PATIENCE_S, killed.describe)
            killed.wait_height(height + ALONE, PATIENCE_S)
            start(first, 0.05)
            wait_until(
                lambda: phases_of_lost_branches(members), "one of two branches to be left", PATIENCE_S, killed.describe
            )
            killed.kill_tree()
            start(late, 0.06)
            ids[peer_id(late)] = late
            first.wait_height(first.status()["height"] + 6, PATIENCE_S)
            start(killed, 0.08)
            killed.wait_height(first.status()["height"] + 3, PATIENCE_S)
            assert late.stop() == 0
            first.wait_height(first.status()["height"] + 4, PATIENCE_S)
            assert killed.stop() == 0
            assert first.stop() == 0
    entries = [signed.entry for signed in log_of(first).entries()]
    contributions = [c for entry in entries for c in entry.contributions]
    assert {c.peer for c in contributions} == set(ids)
    plans = {site.name: told(site) for site in members}
    read = [s for c in contributions for s in plans[ids[c.peer].name][c.phase][: c.tokens // TOKENS_PER_STEP]]
    rules = lease_rules(manifest)
    assert rules is not None
    leases = leases_of(rules, entries)
    counted = Counter(read)
    assert counted.keys() | held(leases) == set(range(leases.fresh)), "skipped"
    assert leases.num_taken == len(counted.keys() - held(leases))
    assert leases.num_twice == sum(counted.values()) - leases.num_taken
    # Dead phases were told to read what the model has from a later one.
    in_chain = {(c.peer, c.phase) for c in contributions}
    dead = {
        (site.name, phase) for peer, site in ids.items() for phase in plans[site.name] if (peer, phase) not in in_chain
    }
    lost = phases_of_lost_branches(members)
    assert len(lost) >= ALONE
    assert lost <= dead, "on the branch that was left, and in the model"
    assert all(count == 1 for count in counted.values()) or leases.num_twice
