"""A network that splits 2 + 2 and heals, with real trainers: one chain soon after contact, and no work lost."""

import time
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.rundir import open_run_dir
from tests.chaos.judge import dilocoxd_json, read_events
from tests.chaos.watch import Watch
from tests.harness.running.network_namespaces import NamespacedSite, Network
from tests.harness.running.sites import sites, wait_until
from tests.harness.running.strikes import standstills
from tests.harness.running.training import INNER_STEPS, PATIENCE_S, founder_options, site_options
from tests.integration.several_sites.test_partition import contributors, network, peer_of, rows_of, run_dirs, wait_entry

__all__ = ["network"]
ALONE = 3
"""Rounds that each half commits alone."""
ROUNDS_TO_UNITE = 2
"""Not counted are those that the others made while a daemon's machine gave it no CPU at all."""

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def sees(site: NamespacedSite, peers: set[str]) -> bool:
    return any(row["is_live"] and row["peer_id"] in peers for row in site.get("/v1/peers") or [])


def test_halves_train_on_alone_and_become_one_chain_within_two_rounds(tmp_path: Path, network: Network) -> None:
    # Of short rounds ten can end before both halves hear of each other: then R28 would keep them apart for good. And it
    # takes its time to fetch the other half's entries, on a busy machine more than rounds of two seconds do.
    founder = [*founder_options(tmp_path, inner_steps=3 * INNER_STEPS), "--set", "round.final_depth=0"]
    members = run_dirs(tmp_path, network, founder, *site_options(tmp_path))
    with sites(*members), Watch(list(members)) as watch:
        for member in members:
            member.start()
        peers = [peer_of(member) for member in members]
        fork = wait_entry(members[0], set(peers))
        network.split("ab")
        halves = (members[:2], members[2:])
        for half in halves:
            start = max(member.says("height") for member in half)
            for member in half:
                member.wait_height(start + ALONE, PATIENCE_S)
        for half, ids in zip(halves, (set(peers[:2]), set(peers[2:])), strict=True):
            newest = wait_until(lambda half=half: rows_of(half[0]), "rounds", PATIENCE_S, half[0].describe)[-1]
            assert contributors(newest) <= ids, "a packet crossed the cut"
        healed_at = time.monotonic()
        for name in "ab":
            network.heal(name)
        across = {member.name: set(peers[2:] if member in halves[0] else peers[:2]) for member in members}
        wait_until(lambda: all(sees(m, across[m.name]) for m in members), "contact", PATIENCE_S, members[0].describe)
        contact_at, contact_height = time.time(), max(member.says("height") for member in members)
        everybody = lambda: "".join(m.describe() for m in members)  # noqa: E731
        wait_until(lambda: watch.common_state(healed_at), "one chain", PATIENCE_S, everybody)
        joint = wait_entry(members[0], set(peers), since=contact_height)
        # What was in flight at contact is settled before; what a site gives next carries what the fork had cost it.
        for member, peer in zip(members, peers, strict=True):
            wait_until(lambda m=member, p=peer: has_come_late(m, p), "work that comes late", PATIENCE_S, everybody)
        assert [member.stop() for member in members] == [0, 0, 0, 0]
    resolved_at = {m.name: assert_work_came_late(m, peer) for m, peer in zip(members, peers, strict=True)}
    winners = [member for member in members if resolved_at[member.name] is None]
    assert len(winners) == 2
    chain = dilocoxd_json("log", "show", str(winners[0].run_dir), "--last", "0")
    united_at = max(at for at in resolved_at.values() if at is not None)
    committed_at = [row["unix_ms"] / 1000 for row in chain]
    frosts = [frost for member in members for frost in standstills(member)]
    rounds = sum(
        contact_at < at < united_at and not any(since <= at <= until for since, until in frosts) for at in committed_at
    )
    print(f"fork after {fork}, contact at height {contact_height}, {rounds} rounds to one chain, joint entry {joint}")
    assert rounds <= ROUNDS_TO_UNITE


def returned_phases(events: list[dict[str, Any]]) -> set[int]:
    """Phases that a fork took out of the chain, and no later one brought back."""
    said = {r["phase"]: r["is_withdrawn"] for r in events if r["event"] == "contribution.returned"}
    return {phase for phase, is_withdrawn in said.items() if not is_withdrawn}


def has_come_late(member: NamespacedSite, peer: str) -> bool:
    """Whether all that forks took out of the chain came back with later contributions that its chain has."""
    contents = KeptWorkStore(open_run_dir(member.run_dir).own_work).contents()
    own = {c["phase"] for row in rows_of(member) for c in row["contributors"] if c["peer"] == peer}
    carried = {phase for given in own for phase in contents.get(given, ()) if phase != given}
    return returned_phases(read_events(member.run_dir)) <= carried


def assert_work_came_late(member: NamespacedSite, peer: str) -> float | None:
    """Rule R21: who was rolled back says so, feeds back what it had done, and the log shows it enter.

    Returns when it was on the common chain; None if it was never rolled back."""
    events = read_events(member.run_dir)
    times = [r["time"] for r in events if r["event"] == "fork.resolved" and r["is_rolled_back"]]
    if not times:
        return None
    returned = returned_phases(events)
    assert returned, f"{member.name} lost a fork and nothing went to its error feedback"
    chain = dilocoxd_json("log", "show", str(member.run_dir), "--last", "0")
    own = [c for row in chain for c in row["contributors"] if c["peer"] == peer]
    assert not returned & {c["phase"] for c in own}, "work counts in the chain and in the error feedback"
    came_late = {phase for c in own for phase in c.get("carries", ())}
    assert came_late >= returned, f"{member.name}: {returned} left the chain, {came_late} came back late"
    return float(max(times))
