"""What old payloads are kept for (replay, live peers within limits, short absences), and which snapshots are used."""

import hashlib
from pathlib import Path

from dilocoxd.daemon.chain.snapshots import PAYLOAD_ROUNDS_MIN, Retention, payloads_needed_from, usable_snapshots
from dilocoxd.ids import Digest, RunId
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import ANCHOR_NAME, SnapshotFile, SnapshotIndex, publish

LIMIT = 1000


def test_nothing_is_dropped_before_a_snapshot_makes_it_needless() -> None:
    assert payloads_needed_from(500, [], [500], LIMIT) == 0
    assert payloads_needed_from(500, [40, 400], [500], LIMIT) == 40


def test_newest_payloads_stay_for_those_who_were_away_for_a_moment() -> None:
    assert payloads_needed_from(500, [490, 500], [500], LIMIT) == 500 - PAYLOAD_ROUNDS_MIN
    assert payloads_needed_from(10, [10], [], LIMIT) == 0


def test_live_peer_keeps_what_it_needs_but_not_for_ever() -> None:
    assert payloads_needed_from(5000, [4990, 5000], [4998, 4200], LIMIT) == 4200
    assert payloads_needed_from(5000, [4990, 5000], [4998, 3], LIMIT) == 4000


def test_limit_in_bytes_is_the_tighter_one_but_own_replay_goes_first() -> None:
    limits = Retention(10, 2, LIMIT, 5_000)
    assert limits.rounds_max(100) == 50 and limits.rounds_max(1) == LIMIT and limits.rounds_max(0) == LIMIT
    assert Retention(10, 2, LIMIT).rounds_max(100) == LIMIT
    assert payloads_needed_from(500, [490, 500], [500], 50) == 450
    assert payloads_needed_from(500, [490, 500], [3], 5) == 490
    assert payloads_needed_from(500, [400, 500], [500], 50) == 400


def write_snapshot(root: Path, number: int, chain_head: str) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    temporary = root / f".{number}.new"
    temporary.mkdir(parents=True)
    index = SnapshotIndex("run", number, digest, digest, chain_head, (SnapshotFile(ANCHOR_NAME, 1, (digest,)),))
    publish(temporary, root / str(number), index)


def test_snapshots_of_another_chain_or_without_a_stamp_are_not_used(tmp_path: Path) -> None:
    genesis = Digest(hashlib.sha256(b"genesis").digest())
    log = EntryLog(tmp_path / "log", RunId("run"), genesis)
    root = tmp_path / "snapshots"
    assert usable_snapshots(root, log) == []
    write_snapshot(root, 0, "")
    assert usable_snapshots(root, log) == []
    write_snapshot(root, 0, hashlib.sha256(b"a fork that lost").hexdigest())
    assert usable_snapshots(root, log) == []
    write_snapshot(root, 0, genesis.hex())
    write_snapshot(root, 7, genesis.hex())
    assert usable_snapshots(root, log) == [root / "0"]
