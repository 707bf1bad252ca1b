"""Directed schedules with peers that vote twice in an attempt: they are proved, named and left out (R27)."""

from collections.abc import Callable
from dataclasses import replace

from dilocoxd.ids import Attempt, PeerId
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.wire.entry import Evidence, VotedEntry, VoteFor
from dilocoxd.wire.messages import Accuse, Propose, Vote
from tests.simulation.peer.disk import sha
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.schedules.byzantine import Mischief
from tests.simulation.schedules.scenario_tools import _cut, _result, _swarm, _until
from tests.simulation.swarm import Swarm

CALM_S = 60.0


def _begin(count: int, *, kind: str = "votes_twice", is_majority: bool = False) -> tuple[Swarm, Node, list[Node]]:
    """(swarm, who lies from now on, the others), all of them training together, no message on its way."""
    swarm, nodes = _swarm(count)
    swarm.limits = replace(swarm.limits, has_majority_quorum=is_majority)
    swarm.may_fork = swarm.has_liar = True
    _until(swarm, lambda: all(node.is_up and len(node.machine.chain.recent_contributors) == count for node in nodes))
    liar, *honest = nodes
    liar.mischief = Mischief(kind, keys_of(liar.name), swarm.world.rng)
    return swarm, liar, honest


def _named_after(honest: list[Node], liar: PeerId) -> str:
    """What is wrong with the entries from the one that holds the evidence on."""
    for node in honest:
        entries = [stored.signed.entry for stored in node.disk.log]
        held = [entry.round for entry in entries if liar in {found.peer for found in entry.evidence}]
        if len(held) != 1:
            return f"{len(held)} entries of {node.name} hold evidence against {liar}"
        later = entries[held[0] :]
        if any(liar in {c.peer for c in entry.contributions} for entry in later):
            return f"an entry of {node.name} after round {held[0]} names {liar}"
        if len(later) < 4:
            return f"{len(later)} rounds in {CALM_S:g} s without {liar}"
    return ""


def who_votes_twice_is_left_out() -> str:
    """A member votes for two entries in one attempt: all learn it, the chain says it, rounds go on without it."""
    swarm, liar, honest = _begin(4)
    _until(swarm, lambda: all(liar.name in node.machine.chain.barred for node in honest), swarm.world.now + 30.0)
    swarm.world.run(swarm.world.now + CALM_S)
    told = swarm.convictions.get(liar.name, set()) - {liar.name}
    if len(told) < len(honest):
        return f"only {sorted(told)} told their operators"
    return _named_after(honest, liar.name) or _result(swarm)


def who_votes_twice_before_different_peers_is_found() -> str:
    """One vote for one peer, another one for the others: nobody hears both, but the entry shows the one that the others
    did not hear."""
    swarm, liar, honest = _begin(4)
    assert liar.mischief is not None
    first = honest[0]
    wrong = liar.mischief._wrong_hash

    def lie(node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        return [message] if target == first.name else wrong(target, message)

    liar.mischief.messages = lie  # type: ignore[method-assign]
    _until(swarm, lambda: all(liar.name in node.machine.chain.barred for node in honest), swarm.world.now + CALM_S)
    swarm.world.run(swarm.world.now + CALM_S)
    return _named_after(honest, liar.name) or _result(swarm)


def who_voted_twice_is_no_part_of_a_majority() -> str:
    """`quorum = majority`: one of two votes twice and goes. The other one alone is a majority of those who count."""
    swarm, liar, (honest,) = _begin(2, is_majority=True)
    _until(swarm, lambda: liar.name in honest.machine.chain.barred, swarm.world.now + 30.0)
    liar.crash()
    before = len(honest.disk.log)
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = len(honest.disk.log) - before
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def who_voted_twice_goes_on_where_nobody_else_trains() -> str:
    """Left out of groups, but not a reason to stand still: once nobody else is there, it may go on alone."""
    swarm, liar, honest = _begin(3)
    _until(swarm, lambda: all(liar.name in n.machine.chain.barred for n in swarm.nodes.values()), 90.0)
    assert liar.mischief is not None
    liar.mischief.kind = "as it should"  # it was a disk that was rolled back
    for node in honest:
        node.phase_s, node.is_training = 1e9, False  # else what each has under way is offered, and goes first
    swarm.world.run(swarm.world.now + CALM_S)
    before = liar.machine.chain.height
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = honest[0].machine.chain.height - before
    return _result(swarm) or ("" if rounds > 2 else f"{rounds} rounds in {CALM_S:g} s, and only it trains")


def who_voted_twice_goes_on_where_the_others_hang() -> str:
    """One of the others trains on and on and offers nothing, one does not train: that is no reason to stand still."""
    swarm, liar, honest = _begin(3)
    _until(swarm, lambda: all(liar.name in n.machine.chain.barred for n in swarm.nodes.values()), 90.0)
    assert liar.mischief is not None
    liar.mischief.kind = "as it should"
    for node in honest:
        node.phase_s = 1e9
    honest[1].is_training = False
    swarm.world.run(swarm.world.now + CALM_S)
    before = liar.machine.chain.height
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = honest[1].machine.chain.height - before
    return "" if rounds > 2 else f"{rounds} rounds in {CALM_S:g} s, and only it offers anything"


def _two_votes(node: Node, against: PeerId, signer: PeerId) -> Evidence:
    """Two votes at the tip of `node`, for different entries, that `signer` signed."""
    status, chain = node.machine.status, node.machine.chain
    votes = [
        (sha(text), keys_of(signer).sign(VoteFor(status.round, Attempt(0), chain.head, sha(text))))
        for text in (b"one", b"other")
    ]
    first, second = [VotedEntry(digest, vote.unix_ms, vote.signature.value) for digest, vote in sorted(votes)]
    return Evidence(against, against.encode(), status.round, Attempt(0), chain.head, first, second)


def majority_of_those_who_voted_twice_is_still_needed() -> str:
    """R27.8: both of two are proved to have voted twice, and are cut apart. Neither may go on alone."""
    swarm, first, (second,) = _begin(2, kind="accuses", is_majority=True)
    both, tip = [first, second], first.machine.chain.height

    def lie(sender: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        return [message, *(Accuse(_two_votes(sender, peer.name, peer.name)) for peer in both)]

    for node in both:
        node.mischief = Mischief("accuses", keys_of(node.name), swarm.world.rng)
        node.mischief.messages = lie  # type: ignore[method-assign]
    _until(swarm, lambda: all(len(node.machine.chain.barred) == 2 for node in both), swarm.world.now + CALM_S)
    for node in both:
        node.mischief = Mischief("as it should", keys_of(node.name), swarm.world.rng)
    _cut(swarm, [first], [second], is_cut=True)
    swarm.world.run(swarm.world.now + CALM_S)
    before = [len(node.disk.log) for node in both]
    swarm.world.run(swarm.world.now + CALM_S)
    alone = [node.name for node, height in zip(both, before, strict=True) if len(node.disk.log) > height]
    _cut(swarm, [first], [second], is_cut=False)
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = min(node.machine.chain.height for node in both) - tip
    if alone:
        return f"{alone} went on alone"
    return "" if rounds > 4 else f"{rounds} rounds, though both are there"


def forged_evidence_is_held_against_nobody() -> str:
    """A liar accuses everybody with votes that it signed itself, by message and in its proposals."""
    swarm, liar, honest = _begin(4, kind="accuses")
    assert liar.mischief is not None

    def lie(node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        forged = _two_votes(node, honest[0].name, node.name)
        if isinstance(message, Propose):
            return [replace(message, evidence=(forged,))]
        return [message, Accuse(forged)] if isinstance(message, Vote) else [message]

    liar.mischief.messages = lie  # type: ignore[method-assign]
    before = min(node.machine.chain.height for node in honest)
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = min(node.machine.chain.height for node in honest) - before
    if any(node.machine.chain.barred for node in swarm.nodes.values()):
        return "somebody is left out for nothing"
    if not any(report.rule == "bad_evidence" for _, report in swarm.reports):
        return "nobody counted what proves nothing"
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def who_comes_back_to_a_head_does_not_vote_there_again() -> str:
    """A voter is moved to another branch and back to the head on which it voted: it goes on behind that attempt."""
    swarm, nodes = _swarm(3)
    first = nodes[0]
    swarm.may_fork = True
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    swarm.is_dropped = lambda source, message: isinstance(message, Vote)
    _until(swarm, lambda: first.machine.status.state == "voting")
    tip, attempt = first.machine.chain, first.machine.status.attempt
    life = first.machine._life
    life.arrive(replace(tip, head=sha(b"another branch")))
    life.arrive(tip)
    if first.machine.status.attempt <= attempt:
        return f"in attempt {first.machine.status.attempt} again, where it voted in {attempt}"
    return ""


DOUBLE_VOTES: tuple[Callable[[], str], ...] = (
    who_votes_twice_is_left_out,
    who_votes_twice_before_different_peers_is_found,
    who_voted_twice_is_no_part_of_a_majority,
    who_voted_twice_goes_on_where_nobody_else_trains,
    who_voted_twice_goes_on_where_the_others_hang,
    majority_of_those_who_voted_twice_is_still_needed,
    forged_evidence_is_held_against_nobody,
    who_comes_back_to_a_head_does_not_vote_there_again,
)
