"""Three sites read a token store while one is killed, two go on apart, one comes late and one leaves: counted sample by
sample, and document by document over several epochs.

Real daemons, outer workers, network and logs; trainers have no model and note what they are told to read.
"""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.chain.reading_plan import lease_rules
from dilocoxd.ids import PeerId
from dilocoxd.machines.reading.leases import Leases, leases_of
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.data.mixed import StoreReading, order_of
from dilocoxd.trainer.data.sources import sources_of
from tests.harness.documents_read import Document, WrittenStore, counts_by_document, write_documents
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of
from tests.harness.running.training import log_of
from tests.harness.synthetic.trainer import READ_LOG_VARIABLE, STEP_S_VARIABLE, TOKENS_PER_STEP

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 120
NUM_SAMPLES = 400
"""Of an epoch: three of them are begun by what is read here."""
AHEAD, ALONE = 12, 2
"""Entries that each of two branches has when they meet."""
OPTIONS = [
    "--set", "strategy.inner_steps=5", "--set", "strategy.extend_steps_max=40", "--set", "strategy.codec=\"fp16\"",
    "--set", "data.evaluate_every_rounds=0", "--set", f"model.seq_len={TOKENS_PER_STEP}",
    "--set", "inner.batch_sequences=1", "--set", "inner.microbatches=1",
]  # fmt: skip


def start(site: SiteProcess, step_s: float) -> None:
    site.environment[STEP_S_VARIABLE] = str(step_s)
    site.environment[READ_LOG_VARIABLE] = str(site.run_dir.parent / f"{site.name}.read")
    site.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(site.run_dir)])


def start_while_another_stands_still(site: SiteProcess, step_s: float, other: SiteProcess) -> None:
    """However long it takes to start, it has the longer branch of the two then."""
    other.signal_tree(signal.SIGSTOP)
    start(site, step_s)
    site.says("peer_id")
    other.signal_tree(signal.SIGCONT)


def peer_id(site: SiteProcess) -> PeerId:
    return PeerId(wait_until(lambda: site.status().get("peer_id"), site.name, PATIENCE_S, site.describe))


def told(site: SiteProcess) -> dict[int, list[int]]:
    """By phase, the samples that the trainer was told to read."""
    lines = (site.run_dir.parent / f"{site.name}.read").read_text().splitlines(keepends=True)
    rows = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half written
    return {
        row["phase"]: [
            sample for a, b in zip(row["samples"][::2], row["samples"][1::2], strict=True) for sample in range(a, b)
        ]
        for row in rows
    }


def wait_epochs(site: SiteProcess) -> None:
    """Until samples of two were read, which are counted through all epochs, however fast the sites were until now."""

    def newest() -> int:
        return max(sample for samples in told(site).values() for sample in samples)

    wait_until(lambda: newest() > 2 * NUM_SAMPLES, "two epochs", PATIENCE_S, site.describe)


def left_a_branch(record: dict[str, Any]) -> bool:
    return bool(record["event"] == "fork.resolved" and record["is_rolled_back"])


def contributes_on_another_branch(site: SiteProcess) -> bool:
    """It has left its branch, and since then an entry has named it."""
    noted = events_of(site)
    left = next((number for number, one in enumerate(noted) if left_a_branch(one)), len(noted))
    return any(one["event"] == "contribution.settled" and one["is_included"] for one in noted[left:])


def phases_of_lost_branches(members: Iterable[SiteProcess]) -> set[tuple[str, int]]:
    """(site, phase) of what a site had contributed on a branch that it left, and that no later one brought back."""
    found = set()
    for site in members:
        records = events_of(site)
        if any(map(left_a_branch, records)):
            moved = {one["phase"]: one["is_withdrawn"] for one in records if one["event"] == "contribution.returned"}
            found |= {(site.name, phase) for phase, is_withdrawn in moved.items() if not is_withdrawn}
    return found


def documents(
    site: SiteProcess, written: WrittenStore, counted: Counter[int], num_samples: int
) -> dict[Document, set[int]]:
    """How often the tokens of each document were read, by the order of this site's trainers."""
    manifest, settings = open_run_dir(site.run_dir).load()
    reading = StoreReading(manifest.model.seq_len, manifest.model.vocab_size, manifest.seeds.data)
    order = order_of(sources_of(manifest, settings), reading, site.name, manifest.data.leased_share)
    return counts_by_document({"texts": written}, order, counted, num_samples)


def held(leases: Leases) -> set[int]:
    queues = [queue for lanes in (*leases.doors, *leases.sites.values()) for queue in lanes.queues]
    return {sample for queue in (*queues, leases.returned) for part in queue for sample in range(part.start, part.stop)}


def check_documents(
    readers: tuple[SiteProcess, SiteProcess],
    written: WrittenStore,
    leases: Leases,
    counted: Counter[int],
    by_dead: Counter[int],
) -> None:
    """Each is in the model once an epoch, but for what waits and what the leases count as read twice; those that phases
    read that died are among them.

    `counted` and `by_dead`: how often each sample was read by phases in the model, and by those that died.
    """
    first, other = readers
    in_model = documents(first, written, counted, leases.fresh)
    waiting = documents(first, written, Counter(held(leases)), leases.fresh)
    assert max(document.epoch for document in in_model) >= 1
    settled = [document for document in in_model if waiting[document] == {0}]
    twice = Counter(sample for sample, times in counted.items() if times > 1)
    again = documents(first, written, twice, leases.fresh)
    several = {document for document in settled if again[document] != {0}}
    assert leases.num_twice or not several
    assert all(in_model[document] == {1} for document in settled if document not in several), "not once"
    died = documents(other, written, by_dead, leases.fresh)
    assert died.keys() == in_model.keys()
    assert {document for document in settled if max(died[document])} - several


def test_every_sample_is_in_the_model_once_or_waits(tmp_path: Path) -> None:
    store = tmp_path / "store"
    written = write_documents(store, NUM_SAMPLES, TOKENS_PER_STEP, seed=1)
    first = found_run(tmp_path, "first", *OPTIONS, "--data", f"texts={store}")
    manifest, _ = open_run_dir(first.run_dir).load()
    assert [(s.name, s.num_tokens) for s in manifest.data.sources] == [("texts", NUM_SAMPLES * TOKENS_PER_STEP + 1)]
    with sites(first):
        start(first, 0.05)
        killed = join_run(tmp_path, "killed", first, "--data", f"texts={store}")
        late = join_run(tmp_path, "late", first, "--data", f"texts={store}")
        members = (first, killed, late)
        with sites(killed, late):
            start(killed, 0.08)
            ids = {peer_id(site): site for site in (first, killed)}
            killed.wait_height(6, PATIENCE_S)
            killed.kill_tree()
            first.wait_height(first.says("height") + AHEAD, PATIENCE_S)
            first.kill_tree()
            # A branch of its own, on the newest state that it had.
            start(killed, 0.3)
            height = wait_until(lambda: killed.status().get("height"), "a state", PATIENCE_S, killed.describe)
            killed.wait_height(height + ALONE, PATIENCE_S)
            start_while_another_stands_still(first, 0.05, killed)
            # The phase that it trains meanwhile has read what the queue of another branch has not handed out.
            wait_until(
                lambda: contributes_on_another_branch(killed), "to go on after the fork", PATIENCE_S, killed.describe
            )
            killed.kill_tree()
            start(late, 0.06)
            ids[peer_id(late)] = late
            first.wait_height(first.says("height") + 6, PATIENCE_S)
            start(killed, 0.08)
            killed.wait_height(first.says("height") + 3, PATIENCE_S)
            wait_epochs(first)
            assert late.stop() == 0
            first.wait_height(first.says("height") + 4, PATIENCE_S)
            assert [site.stop() for site in (killed, first)] == [0, 0]
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
    by_dead = Counter(sample for name, phase in dead for sample in plans[name][phase])
    check_documents((first, late), written, leases, counted, by_dead)
