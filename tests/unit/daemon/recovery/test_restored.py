"""Payloads below a fork that others gave again (L11.3) do not always lead to the state there: then we are back on our
own branch, and a snapshot of the better one is still a way.
"""

from pathlib import Path

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.ids import Digest
from dilocoxd.machines.round.inputs import RecoveryFailed, RecoveryFinished
from tests.harness.synthetic import fake_site
from tests.unit.daemon.recovery.test_driver import Branch, World, heads


async def world_on_a_lie(folder: Path) -> World:
    """Our snapshot skipped entries of which one was voted on a state that never was; a better branch forks there."""
    common = Branch().grown(1, salt=b"common")
    common.digests[-1] = Digest(bytes([7] * 32))
    common = common.grown(2, salt=b"common")
    own, theirs = common.grown(2, salt=b"own", peers=("A",)), common.grown(4, salt=b"theirs")
    world = World(folder, own, theirs)
    own.write_snapshot(world.snapshots, 5)
    world.drop_own_payloads(5)
    maps = PayloadMaps({0: (fake_site.LENGTHS,)})
    assert await world.ledger.open(maps, [world.snapshots / "5"]) == []
    return world


async def test_state_that_never_was_below_a_fork_ends_no_daemon(tmp_path: Path) -> None:
    world = await world_on_a_lie(tmp_path)
    for _ in range(2):
        failed = await world.recover()
        assert isinstance(failed, RecoveryFailed)
        assert "the state at the fork (height 3) cannot be made" in failed.reason
        assert "entry 1 was voted for on a state 0707" in failed.reason
        assert not failed.unconfirmed, "the entries below the fork are ours as well"
        assert world.ledger.chain.head == world.ledger.log.head == heads(world.own.entries)
        assert world.ledger.chain.state_digest == world.own.digests[-1]


async def test_snapshot_leads_on_where_restored_payloads_do_not(tmp_path: Path) -> None:
    world = await world_on_a_lie(tmp_path)
    assert isinstance(await world.recover(), RecoveryFailed)
    world.theirs.write_snapshot(world.donor_snapshots, 6)
    assert isinstance(await world.recover(), RecoveryFinished)
    assert world.ledger.chain.head == heads(world.theirs.entries)
    assert world.ledger.chain.state_digest == world.theirs.digests[-1]
