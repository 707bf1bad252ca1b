"""Directed schedules of the exchange: streams that break or come late, a worker that hangs. As in scenarios.py."""

from dilocoxd.ids import Attempt, RoundIndex
from dilocoxd.rounds.events import KIND_RESULT, MessageReceived, Refusal, SegmentKey
from dilocoxd.wire.messages import Leaving, Ready
from tests.simulation.scenario_tools import _result, _swarm, _unaccepted, _until


def observer_whose_worker_hangs_accepts() -> str:
    """A site whose outer worker hangs observes the next attempt: the others need not wait for its acceptance."""
    swarm, nodes = _swarm(3)
    victim, others = nodes[0], nodes[1:]
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    core = victim.machine._core
    _until(swarm, lambda: core.state == "exchanging" and len(core.parties()) == 3 and not core.outstanding)
    victim.worker.free_at = swarm.world.now + 40.0
    height = victim.machine.chain.height
    _until(swarm, lambda: any(n.machine.status.state == "voting" and len(n.machine.status.group) == 2 for n in others))
    voted_at = swarm.world.now
    _until(swarm, lambda: any(len(node.disk.log) > height for node in others))
    waited = swarm.world.now - voted_at
    if waited > swarm.limits.vote_timeout_s / 2:
        return f"committed {waited:.2f} s after the vote: it was not accepted"
    return _result(swarm)


def broken_streams_are_repeated() -> str:
    """All streams of an exchange break: the same attempt repeats them, and commits."""
    swarm, nodes = _swarm(2)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _until(swarm, lambda: all(node.machine.status.state == "gathering" for node in nodes))
    _until(swarm, lambda: all(len(n.machine.status.group) == 2 and not n.machine._core.outstanding for n in nodes))
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
    core = target.machine._core
    _until(swarm, lambda: core.state == "exchanging" and len(core.parties()) == 3)
    victim.crash()
    _until(swarm, lambda: core.state == "exchanging" and core.attempt > 0 and late.name in core.parties())
    exchange = core.exchange
    owned = [s for s, owner in enumerate(exchange.owners) if owner == late.name] if exchange is not None else []
    for segment in owned:
        key = SegmentKey(KIND_RESULT, core.round, Attempt(core.attempt - 1), 0, segment, None)
        if not isinstance(target.machine.destination(late.name, key), Refusal):
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
    later = Ready(before.round, before.attempt + 1, chain.head, chain.state_digest, None, None, 0)
    contributor.feed(MessageReceived(observer.name, later))
    after = contributor.machine.status
    if after.attempt != before.attempt + 1:
        return f"goes on in attempt {after.attempt}, {after.state}"
    swarm.is_dropped = lambda source, message: False
    return _result(swarm)


def who_comes_back_is_heard_by_one_that_is_behind() -> str:
    """A goodbye holds until its sender says anything of a round that is not over here."""
    swarm, nodes = _swarm(2)
    stays, leaves = nodes
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    core = stays.machine._core
    _until(swarm, lambda: core.state == "gathering" and core.is_live(leaves.name))
    stays.feed(MessageReceived(leaves.name, Leaving(core.round, "maintenance")))
    if core.is_live(leaves.name):
        return "who said goodbye still counts"
    ahead = Ready(
        RoundIndex(core.round + 2), Attempt(0), core.chain.state_digest, core.chain.state_digest, None, None, 0
    )
    stays.feed(MessageReceived(leaves.name, ahead))
    return "" if core.is_live(leaves.name) else "who came back and is ahead is not heard"
