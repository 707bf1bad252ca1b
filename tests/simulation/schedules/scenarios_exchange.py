"""Directed schedules of the exchange: streams that break or come late, a worker that hangs. As in scenarios.py."""

from dataclasses import replace

from dilocoxd.ids import Attempt, RoundIndex
from dilocoxd.machines.exchange.segments import KIND_RESULT, Refusal, SegmentKey
from dilocoxd.machines.round.inputs import MessageReceived, PeersChanged
from dilocoxd.machines.round.proposals import group_proposal
from dilocoxd.wire.messages import Committed, Leaving, Propose, Ready
from tests.simulation.peer.node import Node
from tests.simulation.schedules.scenario_tools import _result, _swarm, _unaccepted, _until


def observer_whose_worker_hangs_accepts() -> str:
    """A site whose outer worker hangs observes the next attempt: the others need not wait for its acceptance."""
    swarm, nodes = _swarm(3)
    victim, others = nodes[0], nodes[1:]
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _until(swarm, lambda: _exchanges_with(victim, 3) and not victim.machine.height.own.orders)
    victim.worker.free_at = swarm.world.now + 40.0
    height = victim.machine.chain.height
    _until(swarm, lambda: any(n.machine.status.state == "voting" and len(n.machine.status.group) == 2 for n in others))
    voted_at = swarm.world.now
    _until(swarm, lambda: any(len(node.disk.log) > height for node in others))
    waited = swarm.world.now - voted_at
    if waited > swarm.limits.vote_timeout_s / 2:
        return f"committed {waited:.2f} s after the vote: it was not accepted"
    return _result(swarm)


def _exchanges_with(node: Node, num_parties: int) -> bool:
    return node.machine.state == "exchanging" and len(node.machine.height.attempt.parties) == num_parties


def broken_streams_are_repeated() -> str:
    """All streams of an exchange break: the same attempt repeats them, and commits."""
    swarm, nodes = _swarm(2)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _until(swarm, lambda: all(node.machine.status.state == "gathering" for node in nodes))
    _until(swarm, lambda: all(len(n.machine.status.group) == 2 and not n.machine.height.own.orders for n in nodes))
    height, failed = nodes[0].machine.chain.height, swarm.attempts_failed
    for link in swarm.world.links.values():
        link.loss = 1.0
    swarm.world.run(swarm.world.now + 0.5)
    for link in swarm.world.links.values():
        link.loss = 0.0
    _until(swarm, lambda: all(len(node.disk.log) > height for node in nodes))
    if swarm.attempts_failed > failed:
        return "an attempt was given up because its streams broke once"
    return _result(swarm)


def results_of_an_abandoned_attempt_are_refused() -> str:
    """A member dies in the exchange; in the next attempt a stream of the first one is late: it must change nothing."""
    swarm, nodes = _swarm(3)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    victim, late, target = nodes
    machine = target.machine
    _until(swarm, lambda: _exchanges_with(target, 3))
    victim.crash()
    _until(swarm, lambda: _exchanges_with(target, 2) and late.name in machine.height.attempt.parties)
    height, attempt = machine.height, machine.height.attempt
    owners = attempt.exchange.owners if attempt.exchange is not None else ()
    owned = [s for s, owner in enumerate(owners) if owner == late.name]
    for segment in owned:
        key = SegmentKey(KIND_RESULT, height.round, Attempt(attempt.index - 1), 0, segment, None)
        if not isinstance(machine.destination(late.name, key), Refusal):
            return "the bytes of an abandoned attempt are taken for those of the running one"
    victim.start()
    return _result(swarm) or ("" if owned else "the late peer owns nothing")


def observer_in_a_later_attempt_stops_the_commit() -> str:
    """An observer that went on without having accepted is not silent: it may commit something else, so we must not."""
    swarm, contributor, observer = _unaccepted()

    def is_the_moment() -> bool:
        status = contributor.machine.status
        return status.state == "voting" and status.coordinator == contributor.name and bool(status.observers)

    _until(swarm, is_the_moment)
    before, chain = contributor.machine.status, contributor.machine.chain
    later = Ready(before.round, before.attempt + 1, chain.head, chain.state_digest, None, None, None, 0)
    contributor.feed(MessageReceived(observer.name, later))
    after = contributor.machine.status
    if after.attempt != before.attempt + 1:
        return f"goes on in attempt {after.attempt}, {after.state}"
    swarm.is_dropped = lambda source, message: False
    return _result(swarm)


def _counts_on(node: Node, other: Node) -> bool:
    return node.machine.height.book.is_live(other.name)


def _said_goodbye() -> tuple[Node, Node]:
    """(who gathers, and has just heard the goodbye; whose goodbye it is)."""
    swarm, nodes = _swarm(2)
    stays, leaves = nodes
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _until(swarm, lambda: stays.machine.state == "gathering" and _counts_on(stays, leaves))
    stays.feed(MessageReceived(leaves.name, Leaving(stays.machine.height.round, "maintenance")))
    return stays, leaves


def who_comes_back_is_heard_by_one_that_is_behind() -> str:
    """A goodbye holds until its sender says anything of a round that is not over here."""
    stays, leaves = _said_goodbye()
    if _counts_on(stays, leaves):
        return "who said goodbye still counts"
    chain = stays.machine.chain
    ahead = Ready(RoundIndex(chain.height + 2), Attempt(0), chain.state_digest, chain.state_digest, None, None, None, 0)
    stays.feed(MessageReceived(leaves.name, ahead))
    return "" if _counts_on(stays, leaves) else "who came back and is ahead is not heard"


def goodbye_is_over_when_its_peer_is_back() -> str:
    """Membership saw it go and come: whoever leaves in turn waits for it, whether or not its Ready was lost."""
    stays, leaves = _said_goodbye()
    view = stays.machine.height.book.view(leaves.name)
    assert view is not None
    stays.feed(PeersChanged((view,)))
    if _counts_on(stays, leaves):
        return "membership, which does not know of the goodbye yet, is believed"
    stays.feed(PeersChanged((replace(view, is_live=False),)))
    stays.feed(PeersChanged((view,)))
    return "" if _counts_on(stays, leaves) else "who came back still counts as gone"


def who_is_left_out_joins_no_other_group_of_its_attempt() -> str:
    """One peer says that a round goes on without us: we wait for no proposal but that of the first candidate."""
    return _left_out(told_by=1, by_first=False, is_taken=False)


def first_candidate_is_believed_against_one_liar() -> str:
    """Anybody can say that a round goes on without us: that alone does not keep us from the first candidate."""
    return _left_out(told_by=1, by_first=True, is_taken=True)


def who_is_left_out_as_two_say_joins_nobody() -> str:
    """The first candidate may have been restarted, and know nothing of what goes on."""
    return _left_out(told_by=2, by_first=True, is_taken=False)


def _left_out(*, told_by: int, by_first: bool, is_taken: bool) -> str:
    swarm, nodes = _swarm(4)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    swarm.is_dropped = lambda source, message: isinstance(message, Propose)

    def left_out() -> list[Node]:
        heights = [(node, node.machine.height) for node in nodes if node.machine.state == "gathering"]
        waiting = [(node, one) for node, one in heights if one.own.offer and len(one.book.live()) == 4]
        return [node for node, one in waiting if one.candidates()[0] != one.me]

    _until(swarm, lambda: bool(left_out()))
    node = left_out()[0]
    height, offer = node.machine.height, node.machine.height.own.offer
    first, *others = [peer for peer in height.candidates() if peer != height.me]
    assert offer is not None
    ours = group_proposal(height, (offer.contribution,), node.clock())
    theirs = replace(ours, contributions=(replace(offer.contribution, peer=others[0]),), observers=())
    for peer in others[:told_by]:
        node.feed(MessageReceived(peer, theirs))
    before = node.machine.status.attempt
    node.feed(MessageReceived(first if by_first else others[1], ours))
    machine = node.machine
    limit = swarm.world.now + 60.0
    _until(swarm, lambda: machine.state != "gathering" or machine.status.attempt > before, limit)
    if (machine.status.attempt == before) is not is_taken:
        return f"{machine.state} in attempt {machine.status.attempt}, was in {before}"
    swarm.is_dropped = lambda source, message: False
    return _result(swarm)


def who_says_that_it_committed_is_waited_for() -> str:
    """It stands where we stand, whatever its last heartbeat said, and has a Ready on its way."""
    swarm, nodes = _swarm(2)
    node, other = nodes
    _until(swarm, lambda: all(one.is_up and one.machine.chain.height > 2 for one in nodes))
    swarm.is_dropped = lambda source, message: source == other.name and isinstance(message, Ready | Committed)
    machine = node.machine
    _until(swarm, lambda: machine.state == "gathering" and machine.height.words.ready(other.name) is None)
    height, chain, view = machine.height, machine.chain, machine.height.book.view(other.name)
    assert view is not None
    stale = replace(view, height=RoundIndex(chain.height - 1), head=chain.hash_at(chain.height - 2))
    node.feed(PeersChanged((stale,)))
    if other.name in height.candidates():
        return "the heartbeat is not believed"
    node.feed(MessageReceived(other.name, Committed(RoundIndex(chain.height - 1), chain.head)))
    if (
        other.name not in height.candidates()
        or height.book.present_views(chain, is_training=True)[other.name].height != chain.height
    ):
        return "who has committed our head is not waited for"
    swarm.is_dropped = lambda source, message: False
    return _result(swarm)
