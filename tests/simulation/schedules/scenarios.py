"""Directed schedules for moments that random ones rarely hit. Each returns the broken invariant, or an empty text."""

from dataclasses import replace

from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.machines.membership.machine import ALIVE, DEAD, SUSPECT
from dilocoxd.machines.round.inputs import MessageReceived
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.messages import Accept, Committed, Propose, Vote
from tests.simulation.peer.disk import CRASHES, sha
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of, offer_of
from tests.simulation.schedules.byzantine import Mischief
from tests.simulation.schedules.scenario_tools import _cut, _result, _swarm, _unaccepted, _until
from tests.simulation.schedules.scenarios_exchange import (
    broken_streams_are_repeated,
    first_candidate_is_believed_against_one_liar,
    goodbye_is_over_when_its_peer_is_back,
    observer_in_a_later_attempt_stops_the_commit,
    observer_whose_worker_hangs_accepts,
    results_of_an_abandoned_attempt_are_refused,
    who_comes_back_is_heard_by_one_that_is_behind,
    who_is_left_out_as_two_say_joins_nobody,
    who_is_left_out_joins_no_other_group_of_its_attempt,
    who_says_that_it_committed_is_waited_for,
)
from tests.simulation.swarm import Swarm
from tests.simulation.world import World


def _has_voted(node: Node) -> bool:
    lock = node.machine.height.lock
    return node.machine.status.state == "voting" and lock is not None and len(lock.voters) == 3


def _has_all(node: Node) -> bool:
    return bool(node.disk.log) and len(node.disk.log[-1].signed.votes) == 3


def voter_restarts_after_a_lone_commit() -> str:
    """One peer commits alone and dies, a second restarts after its vote: it and the third must commit the same."""
    swarm, nodes = _swarm(3)
    first, others = nodes[0], nodes[1:]
    _until(swarm, lambda: first.is_up and first.machine.chain.height > 0)
    silent = {first.name}
    swarm.is_dropped = lambda source, message: source in silent and isinstance(message, Vote | Committed)
    height = first.machine.chain.height
    _until(swarm, lambda: len(first.disk.log) > height and _has_all(first) and all(_has_voted(node) for node in others))
    first.crash()
    others[0].crash()
    swarm.world.after(0.5, others[0].start)
    silent.clear()
    swarm.world.after(25.0, first.start)
    return _result(swarm)


def restarted_voter_asks_before_it_finishes() -> str:
    """One of two votes and dies, the other goes on alone: the first must not finish the entry when it comes back.

    Who coordinates when it is back, and what it hears first, is left to chance: several times."""
    return next(filter(None, map(_restarted_voter, range(7, 13))), "")


def _restarted_voter(seed: int) -> str:
    swarm, nodes = _swarm(2, seed)
    lonely, voter = nodes
    _until(swarm, lambda: lonely.is_up and lonely.machine.chain.height > 0)
    swarm.is_dropped = lambda source, message: source == voter.name and isinstance(message, Vote)
    _until(swarm, lambda: voter.machine.status.state == "voting" and len(voter.machine.status.group) == 2)
    height = voter.machine.chain.height
    voter.crash()
    swarm.is_dropped = lambda source, message: False
    _until(swarm, lambda: lonely.machine.chain.height > height)
    voter.start()
    return _result(swarm) or ("the restarted voter forked" if swarm.ledger.num_forks() else "")


def overtaken_message_does_not_hide_a_commit() -> str:
    """A peer has committed and an older message of it comes after the news: we must not go on alone beside it."""
    swarm, nodes = _swarm(2)
    first, second = nodes
    _until(swarm, lambda: first.is_up and first.machine.chain.height > 1 and first.machine.status.state == "gathering")
    chain = first.machine.chain
    first.feed(MessageReceived(second.name, Committed(chain.height, sha(b"the next entry"))))
    first.feed(MessageReceived(second.name, Committed(RoundIndex(chain.height - 1), chain.head)))
    first.presence.report()
    waits = first.machine.status.waiting_for
    return "" if waits.startswith("recovery") else f"waits for {waits} although {second.name} says that it is ahead"


def forged_votes_are_not_taken() -> str:
    """Somebody who lags behind can only ask a liar, who serves forged votes; the chain stays acceptable."""
    swarm, nodes = _swarm(3)
    swarm.may_fork = swarm.has_liar = True
    liar, honest, lagging = nodes
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _cut(swarm, [lagging], [liar, honest], is_cut=True)
    swarm.world.run(swarm.world.now + 15.0)
    liar.mischief = Mischief("never_votes", keys_of(liar.name), swarm.world.rng)
    _cut(swarm, [lagging], [liar], is_cut=False)
    swarm.world.run(swarm.world.now + 20.0)
    _cut(swarm, [lagging], [honest], is_cut=False)
    return _result(swarm)


def false_branch_is_left_again() -> str:
    """A heavier branch on a state that never was: what we had committed is in the chain again."""
    swarm, nodes = _swarm(3)
    swarm.may_fork = swarm.has_liar = True
    liar, honest = nodes[0], nodes[1:]
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    liar.mischief = Mischief("forges_a_branch", keys_of(liar.name), swarm.world.rng)
    before = [entry_hash(stored.signed.entry) for stored in honest[0].disk.log[:2]]
    swarm.world.run(swarm.world.now + 30.0)
    after = [entry_hash(stored.signed.entry) for stored in honest[0].disk.log[:2]]
    return _result(swarm) or ("" if before == after else "entries that all had committed are gone")


def payloads_end_in_the_middle() -> str:
    """The source of a heavier branch dies while it is taken: our own branch is the chain again."""
    swarm, nodes = _swarm(4)
    swarm.may_fork = True
    swarm.world.run(15.0)
    light, heavy = nodes[:1], nodes[1:]
    _cut(swarm, light, heavy, is_cut=True)
    swarm.world.run(55.0)
    _cut(swarm, light, heavy, is_cut=False)
    _until(swarm, lambda: light[0].name in swarm.ledger.reported, 120.0)
    for node in heavy:
        node.crash()
    _until(swarm, lambda: not light[0].is_recovering, 180.0)
    if not light[0].disk.log or swarm.ledger.reported[light[0].name] & {
        entry_hash(stored.signed.entry) for stored in light[0].disk.log
    }:
        return "what is in the log is reported as lost"
    for node in heavy:
        node.start()
    return _result(swarm)


def torn_writes_are_cut_at_start() -> str:
    """On real files: the process dies before, in and after its writes to the log, again and again."""
    swarm = Swarm(World(11))
    swarm.has_files = True
    nodes = [swarm.add(f"p{index}", 4.0) for index in range(3)]
    for node in nodes:
        swarm.world.at(0.0, node.start)
    try:
        for index, crash in enumerate(CRASHES * 2):
            victim = nodes[index % 3]
            _until(swarm, lambda: all(node.is_up for node in nodes), 1000.0)
            victim.crash_in_append = crash
            _until(swarm, lambda node=victim: not node.is_up, 1000.0)  # type: ignore[misc]
            swarm.world.run(swarm.world.now + 1.0)
            victim.start()
        return _result(swarm)
    finally:
        swarm.close()


def full_disk_stops_one_site_only() -> str:
    """No space for the log: the site says so and leaves, the others go on, and it comes back when there is space."""
    swarm, nodes = _swarm(3)
    victim = nodes[0]
    _until(swarm, lambda: victim.is_up and victim.machine.chain.height > 1)
    victim.disk.is_full = True
    _until(swarm, lambda: not victim.is_up)
    height = nodes[1].machine.chain.height
    swarm.world.run(swarm.world.now + 20.0)
    if nodes[1].machine.chain.height < height + 2:
        return "the others did not go on"
    victim.disk.is_full = False
    victim.start()
    return _result(swarm)


def silent_peer_refutes_its_death() -> str:
    """Cut off until it counts as dead, then back: its next record makes it live again, and both are in one chain."""
    swarm, nodes = _swarm(3)
    swarm.may_fork = True
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    lonely, others = nodes[0], nodes[1:]
    _cut(swarm, [lonely], others, is_cut=True)

    def states() -> set[str]:
        return {node.presence.table.state(lonely.name, now=node.clock()) for node in others}

    _until(swarm, lambda: states() == {SUSPECT}, 100.0)
    _until(swarm, lambda: states() == {DEAD}, 100.0)
    _cut(swarm, [lonely], others, is_cut=False)
    _until(swarm, lambda: states() == {ALIVE}, 100.0)
    return _result(swarm)


def split_and_heal() -> str:
    """2 + 2 for several rounds: one chain soon after contact, the losers' work back in their feedback."""
    swarm, nodes = _swarm(4)
    swarm.may_fork = True
    swarm.world.run(15.0)
    names = [node.name for node in nodes]
    pairs = [(a, b) for a in names for b in names if (a in names[:2]) != (b in names[:2])]
    for a, b in pairs:
        swarm.world.link(a, b).is_cut = True
    swarm.world.run(55.0)
    if len({node.machine.chain.head for node in nodes}) < 2:
        return "the halves did not go on by themselves"
    for a, b in pairs:
        swarm.world.link(a, b).is_cut = False
    return _result(swarm)


def majority_of_three_and_one() -> str:
    """`quorum = majority`, 3 + 1: the one waits with a reason and never forks."""
    swarm, nodes = _swarm(4)
    swarm.limits = replace(swarm.limits, has_majority_quorum=True)
    swarm.world.run(20.0)
    lonely = nodes[3]
    for node in nodes[:3]:
        swarm.world.link(node.name, lonely.name).is_cut = True
        swarm.world.link(lonely.name, node.name).is_cut = True
    swarm.world.run(60.0)
    if "majority" not in lonely.machine.status.waiting_for:
        return f"the one waits for: {lonely.machine.status.waiting_for}"
    for node in nodes[:3]:
        swarm.world.link(node.name, lonely.name).is_cut = False
        swarm.world.link(lonely.name, node.name).is_cut = False
    return _result(swarm) or ("a majority forked" if swarm.ledger.num_forks() else "")


def minority_does_not_finish_a_locked_entry() -> str:
    """`quorum = majority`: one has voted, the others die before anybody has committed; it waits for them."""
    swarm, nodes = _swarm(3)
    swarm.limits = replace(swarm.limits, has_majority_quorum=True)
    _until(swarm, lambda: nodes[0].is_up and len(nodes[0].machine.chain.recent_contributors) == 3)
    _until(swarm, lambda: all(node.is_up and node.machine.status.state == "gathering" for node in nodes))
    swarm.is_dropped = lambda source, message: isinstance(message, Vote)
    _until(swarm, lambda: any(node.machine.height.lock is not None for node in nodes))
    (locked, *_) = [node for node in nodes if node.machine.height.lock is not None]
    others = [node for node in nodes if node is not locked]
    height = len(locked.disk.log)
    for node in others:
        node.crash()
    swarm.is_dropped = lambda source, message: False
    swarm.world.run(swarm.world.now + 40.0)
    if len(locked.disk.log) > height:
        return "one of three has committed"
    for node in others:
        node.start()
    return _result(swarm)


def observer_is_asked_first() -> str:
    """A lone contributor does not commit at once while a live observer has not promised to stay with it."""
    swarm, nodes = _swarm(2)
    contributor, observer = nodes
    observer.is_training = False
    _until(swarm, lambda: contributor.is_up and contributor.machine.chain.height > 1)
    swarm.is_dropped = lambda source, message: isinstance(message, Accept | Vote)  # nor may it commit before us
    _until(swarm, lambda: contributor.machine.status.state == "gathering")
    height = contributor.machine.chain.height
    _until(swarm, lambda: contributor.machine.status.state == "voting")
    voted_at = swarm.world.now
    _until(swarm, lambda: len(contributor.disk.log) > height)
    waited = swarm.world.now - voted_at
    return "" if waited > swarm.limits.vote_timeout_s / 2 else f"committed {waited:.2f} s after the vote, unaccepted"


def observer_in_another_group_stops_the_commit() -> str:
    """An observer that accepted another proposal of the attempt is not silent: its group may commit, ours must not."""
    swarm, contributor, observer = _unaccepted()
    _until(swarm, lambda: contributor.machine.status.state == "voting")
    before = contributor.machine.status
    elsewhere = Accept(before.round, before.attempt, PeerId("another"))
    contributor.feed(MessageReceived(observer.name, elsewhere))
    after = contributor.machine.status
    if (after.state, after.attempt) != ("gathering", before.attempt + 1):
        return f"goes on in attempt {after.attempt}, {after.state}"
    swarm.is_dropped = lambda source, message: False
    return _result(swarm)


def phase_of_the_chain_is_refused() -> str:
    """A proposal that names a contribution which the chain holds already is refused and reported."""
    swarm, nodes = _swarm(2)
    first = nodes[0]
    _until(swarm, lambda: first.is_up and first.machine.chain.height > 1 and first.machine.status.state == "gathering")
    chain, old = first.machine.chain, first.disk.log[-1].signed.entry.contributions
    again = tuple(replace(contribution, base_round=chain.height) for contribution in old)
    named = {contribution.peer for contribution in again}
    propose = Propose(
        round=chain.height,
        attempt=first.machine.status.attempt,
        parent=chain.head,
        state_digest=chain.state_digest,
        contributions=again,
        offers=tuple(offer_of(contribution) for contribution in again),
        observers=tuple(node.name for node in nodes if node.name not in named),
        owners=(0, 0, 0),
        lowrank_r=0,
        next_lowrank_r=0,
        next_inner_steps=0,
        parent_voters=chain.tip_voters,
        evidence=(),
    )
    for node in nodes:
        first.feed(MessageReceived(node.name, propose))
    swarm.world.run(swarm.world.now + 3.0)
    is_reported = any(report.rule == "bad_proposal" for _, report in swarm.reports)
    return "" if is_reported else "a phase that is in the chain was accepted again"


SCENARIOS = (
    voter_restarts_after_a_lone_commit,
    restarted_voter_asks_before_it_finishes,
    overtaken_message_does_not_hide_a_commit,
    minority_does_not_finish_a_locked_entry,
    forged_votes_are_not_taken,
    false_branch_is_left_again,
    payloads_end_in_the_middle,
    torn_writes_are_cut_at_start,
    full_disk_stops_one_site_only,
    silent_peer_refutes_its_death,
    observer_is_asked_first,
    observer_in_another_group_stops_the_commit,
    phase_of_the_chain_is_refused,
    observer_in_a_later_attempt_stops_the_commit,
    who_comes_back_is_heard_by_one_that_is_behind,
    goodbye_is_over_when_its_peer_is_back,
    who_is_left_out_joins_no_other_group_of_its_attempt,
    first_candidate_is_believed_against_one_liar,
    who_is_left_out_as_two_say_joins_nobody,
    who_says_that_it_committed_is_waited_for,
    observer_whose_worker_hangs_accepts,
    broken_streams_are_repeated,
    results_of_an_abandoned_attempt_are_refused,
    split_and_heal,
    majority_of_three_and_one,
)
