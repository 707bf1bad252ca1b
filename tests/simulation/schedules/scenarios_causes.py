"""Directed schedules for forks that have a cause although nothing was split: a pause, or one that leaves and one that
dies. The check of forks must know exactly these causes (docs/simulation.md, R-d)."""

from collections.abc import Callable

from dilocoxd.ids import PeerId
from dilocoxd.machines.membership.machine import UNREACHABLE_LIVE_S
from dilocoxd.machines.round.grouping import coordinator_order
from dilocoxd.machines.round.inputs import LeaveRequested
from dilocoxd.wire.messages import Committed, Vote
from dilocoxd.wire.records import PeerRecord
from tests.simulation.peer.disk import RUN_ID
from tests.simulation.peer.node import Node
from tests.simulation.schedules.scenario_tools import _result, _swarm, _until


def site_that_stands_still_with_its_entry_is_not_waited_for() -> str:
    """It alone has committed: the other takes it for dead and goes on, as after a crash. No other pause is a cause."""
    swarm, nodes = _swarm(2)
    still, other = nodes
    other.is_training = False
    _until(swarm, lambda: still.is_up and still.machine.chain.height > 1)
    swarm.is_dropped = lambda source, message: source == still.name and isinstance(message, Vote | Committed)
    height = still.machine.chain.height
    _until(swarm, lambda: len(still.disk.log) > height)
    still.pause()
    other.worker.form()
    _until(swarm, lambda: len(other.disk.log) > height)
    swarm.is_dropped = lambda source, message: False
    still.resume()
    problem = _result(swarm)
    if not swarm.ledger.num_forks():
        return "the schedule's moment never came"
    swarm.ledger.missed = {still.name: height + 1}
    return problem or ("" if swarm.ledger.num_unexcused_forks() else "a later pause excuses an earlier fork")


def site_that_stands_still_unheard_is_not_waited_for() -> str:
    """The same beside one that has never heard of it, if it stands still for longer than it would be waited for."""
    swarm, nodes = _swarm(2)
    still, other = nodes
    other.is_training = False
    swarm.world.link(still.name, other.name).is_cut = True
    _until(swarm, lambda: still.is_up and still.machine.chain.height > 0)
    still.pause()
    other.worker.form()
    _until(swarm, lambda: len(other.disk.log) > 0)
    if swarm.ledger.missed:
        return "a pause excuses a fork, although heartbeats that were lost before are its cause"
    swarm.world.run(swarm.world.now + UNREACHABLE_LIVE_S)
    other.worker.form()
    _until(swarm, lambda: len(other.disk.log) > 1)
    return "" if swarm.ledger.missed == {still.name: 1} else f"missed: {swarm.ledger.missed}"


def entry_that_a_leaver_handed_over_may_be_lost() -> str:
    """Two commit beside a third; one leaves, the other dies at once: the third goes on, as after two crashes."""
    swarm, nodes = _swarm(3)
    leaver, holder, third = nodes
    third.is_training = False
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    swarm.is_dropped = lambda source, message: source == third.name
    behind = (leaver, holder)
    _until(swarm, lambda: all(_contributes(n, behind) and len(n.disk.log) > len(third.disk.log) for n in behind))
    height = len(third.disk.log)
    leaver.feed(LeaveRequested())
    _until(swarm, lambda: leaver.has_left)
    if (leaver.name, height) in swarm.ledger.taken_along:
        return "the entry is said to be lost, although it was handed over"
    holder.crash()
    swarm.is_dropped = lambda source, message: False
    third.worker.form()
    _until(swarm, lambda: len(third.disk.log) > height)
    leaver.start()
    holder.start()
    problem = _result(swarm)
    if not swarm.ledger.num_forks():
        return "the schedule's moment never came"
    swarm.ledger.taken_along.clear()
    return problem or ("" if swarm.ledger.num_unexcused_forks() else "a crash excuses what was handed over to others")


def run_is_joined_although_its_records_are_lost() -> str:
    """Two start beside a run, hear what its sites say in it, but nothing of them by membership: they begin no other."""
    swarm, nodes = _swarm(2)
    late = [swarm.add(f"p{index}", 4.0) for index in (2, 3)]
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    for node in late:
        node.start()
        presence = node.presence
        known, names = presence.on_record, {other.name for other in late}
        presence.on_record = lambda by, record, known=known, names=names: (  # type: ignore[method-assign,misc]
            known(by, record) if record.peer in names else None
        )
    swarm.world.run(swarm.world.now + 30.0)
    lost = [node.name for node in late if node.disk.log[:1] != nodes[0].disk.log[:1]]
    return _result(swarm) or (f"{lost} began another run" if lost or swarm.ledger.num_forks() else "")


def one_that_only_talks_to_us_is_asked() -> str:
    """Two begin a run at once; the first hears what the other says in it, but nothing of it by membership."""
    swarm, nodes = _swarm(2)
    first, other = nodes
    _until(swarm, lambda: all(node.is_up for node in nodes))
    first.presence.on_record = lambda by, record: None  # type: ignore[method-assign]
    _until(swarm, lambda: other.name in first.machine.height.words.readies())
    first.worker.form()
    _until(swarm, lambda: first.machine.status.state in ("voting", "committing"))
    observers = first.machine.status.observers
    return "" if other.name in observers else f"decides beside {observers}, though {other.name} is ready"


def who_has_not_heard_of_the_others_is_named_with_them() -> str:
    """The coordinator knows the two others, and these nothing of each other: nobody is lost for that (R12.10)."""
    swarm, nodes = _swarm(3)
    _until(swarm, lambda: all(node.is_up for node in nodes))
    (first, *_), *_ = [coordinator_order(RUN_ID, 0, 0, [node.name for node in nodes])]
    for node in nodes:
        node.presence.on_record = _of_one_alone(node, first) if node.name != first else node.presence.on_record  # type: ignore[method-assign]
    _until(swarm, lambda: any(node.disk.log for node in nodes))
    names = {c.peer for node in nodes if node.disk.log for c in node.disk.log[0].signed.entry.contributions}
    if names != {node.name for node in nodes}:
        return f"an entry of {sorted(names)} alone"
    return f"{swarm.attempts_failed} attempts failed" if swarm.attempts_failed else ""


def _of_one_alone(node: Node, known: PeerId) -> Callable[[PeerId, PeerRecord], None]:
    """Of all records that come, those of this peer."""
    take = node.presence.on_record
    return lambda by, record: take(by, record) if record.peer == known else None


def _contributes(node: Node, group: tuple[Node, ...]) -> bool:
    """Its newest entry is of all of these."""
    names = {c.peer for c in node.disk.log[-1].signed.entry.contributions}
    return names == {member.name for member in group}


CAUSES = (
    site_that_stands_still_with_its_entry_is_not_waited_for,
    site_that_stands_still_unheard_is_not_waited_for,
    entry_that_a_leaver_handed_over_may_be_lost,
    run_is_joined_although_its_records_are_lost,
    one_that_only_talks_to_us_is_asked,
    who_has_not_heard_of_the_others_is_named_with_them,
)
