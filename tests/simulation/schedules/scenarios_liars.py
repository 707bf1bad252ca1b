"""Directed schedules with a liar that holds the others up, or has them commit what is no result. As in scenarios.py."""

import struct
from dataclasses import replace
from typing import Any

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.peers.standing import SUSPICION_MAX
from dilocoxd.machines.round.inputs import MessageReceived, RoundMessage
from dilocoxd.wire.entry import RAMP_WHOLE, Contribution, Signature, SignedEntry, entry_hash, voted_for
from dilocoxd.wire.messages import Abandon, Accept, Committed, Ready, Vote
from tests.simulation.peer.arithmetic import encode, weighted_mean
from tests.simulation.peer.disk import Stored, hashes, sha
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of, offer_of
from tests.simulation.schedules.byzantine import Mischief
from tests.simulation.schedules.scenario_tools import _result, _swarm, _until
from tests.simulation.swarm import Swarm

CALM_S = 60.0
"""So long the liar is at work."""
RAISED_EVERY_S = 0.02
FOLLOWED_MAX = 1_000
"""Attempts; some hundreds are seen where few are followed."""
LAST_PHASE = PhaseId(2**62)
SEATED = 10
"""Phases of `CALM_S` that are counted at least; a site makes up to 15."""


def _begin(count: int) -> tuple[Swarm, Node, list[Node]]:
    """(swarm, who will lie, the others), all of them training together."""
    swarm, nodes = _swarm(count)
    swarm.may_fork = swarm.has_liar = True
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    liar, *honest = nodes
    liar.mischief = Mischief("says what follows", keys_of(liar.name), swarm.world.rng)
    return swarm, liar, honest


def _rounds_since(swarm: Swarm, honest: list[Node]) -> int:
    before = min(node.machine.chain.height for node in honest)
    swarm.world.run(swarm.world.now + CALM_S)
    return min(node.machine.chain.height for node in honest) - before


def who_raises_attempts_alone_is_not_followed() -> str:
    """A liar is always in a later attempt, in another one for each peer: the others stay together in theirs."""
    swarm, liar, honest = _begin(6)
    rng = swarm.world.rng

    def lie(node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if not isinstance(message, Ready):
            return [message]
        known = max((one.machine.status.attempt for one in honest), default=Attempt(0))
        assert known < FOLLOWED_MAX, f"the others followed the liar to attempt {known}"
        return [replace(message, attempt=Attempt(known + rng.choice([1, 2, 40])))]

    assert liar.mischief is not None
    liar.mischief.messages = lie  # type: ignore[method-assign]
    rounds = _rounds_since(swarm, honest)
    return _result(swarm) or ("" if rounds > 10 else f"{rounds} rounds in {CALM_S:g} s")


def who_raises_attempts_together_is_not_followed() -> str:
    """Two of seven say, one after the other and faster than a group forms, that they are in a later attempt: neither is
    company for the other one."""
    swarm, nodes = _swarm(7)
    swarm.may_fork = swarm.has_liar = True
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    liars, honest = nodes[:2], nodes[2:]
    for liar in liars:
        liar.mischief = Mischief("says what follows", keys_of(liar.name), swarm.world.rng)
        liar.mischief.messages = lambda node, target, message: []  # type: ignore[method-assign]
        liar.mischief.chain = lambda own: honest[0].machine.chain  # type: ignore[method-assign]

    def raise_all(turn: int) -> None:
        for node in honest:
            here = node.machine.height.ready_message()
            assert here.attempt < FOLLOWED_MAX, f"the others followed the liars to attempt {here.attempt}"
            later = replace(here, attempt=Attempt(here.attempt + 1), contribution=None, offer=None, lock=None)
            node.feed(MessageReceived(liars[turn].name, later))
        if swarm.is_training:
            swarm.world.at(swarm.world.now + RAISED_EVERY_S, lambda: raise_all(1 - turn))

    raise_all(0)
    rounds = _rounds_since(swarm, honest)
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def who_is_needed_for_a_majority_is_followed() -> str:
    """R5.5: one of two was alone in later attempts again and again, and is in one now; no majority is without it."""
    swarm, suspected, (other,) = _begin(2)
    swarm.limits = replace(swarm.limits, has_majority_quorum=True)
    for node in (suspected, other):
        node.crash()
        node.start()
    swarm.is_training = False
    _until(swarm, lambda: all(node.is_up and node.machine.status.state == "gathering" for node in (suspected, other)))
    swarm.world.run(swarm.world.now + CALM_S)
    for _ in range(SUSPICION_MAX + 1):
        other.machine.height.book.raised(suspected.name)
    later = replace(other.machine.height.ready_message(), attempt=Attempt(3))
    suspected.feed(MessageReceived(other.name, later))  # it lies beyond what the other one says from now on
    swarm.is_training = True
    rounds = _rounds_since(swarm, [suspected, other])
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def who_was_led_far_away_is_followed_where_a_majority_needs_it() -> str:
    """R5.5: one of three, alone with a liar for a moment, believes it that it is in attempt 1000. The third one comes
    back, and the liar says nothing any more: the two are a majority, and none without each other."""
    swarm, liar, (led, other) = _begin(3)
    swarm.limits = replace(swarm.limits, has_majority_quorum=True)
    for node in (led, other):
        node.crash()
        node.start()
    height = max(node.machine.chain.height for node in (liar, led, other))
    _until(swarm, lambda: led.is_up and other.is_up and led.machine.chain.height > height + 1, 100.0)
    assert liar.mischief is not None
    liar.mischief.messages = lambda node, target, message: []  # type: ignore[method-assign]
    liar.mischief.chain = lambda own: led.machine.chain  # type: ignore[method-assign]
    other.crash()
    swarm.world.run(swarm.world.now + CALM_S)
    far = replace(led.machine.height.ready_message(), attempt=Attempt(1000), contribution=None, offer=None, lock=None)
    led.feed(MessageReceived(liar.name, far))
    if led.machine.status.attempt != far.attempt:
        return f"in attempt {led.machine.status.attempt}"
    other.start()
    rounds = _rounds_since(swarm, [led, other])
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def who_gives_attempts_up_and_goes_on_stops_no_round() -> str:
    """An observer gives up attempts that nobody is in, so that it is left out, and goes on instead of accepting.

    It says that it stands where the others stand, whatever it knows."""
    swarm, liar, honest = _begin(4)
    liar.is_training = False

    def lie(node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        here = replace(honest[0].machine.height.ready_message(), contribution=None, lock=None)
        if isinstance(message, Ready):
            given_up = [Abandon(here.round, Attempt(here.attempt + ahead), "no", ()) for ahead in (1, 2, 3)]
            return [here, *given_up, here]
        return [replace(here, attempt=Attempt(here.attempt + 1))] if isinstance(message, Accept) else []

    assert liar.mischief is not None
    liar.mischief.messages = lie  # type: ignore[method-assign]
    liar.mischief.chain = lambda own: honest[0].machine.chain  # type: ignore[method-assign]
    rounds = min(_rounds_since(swarm, honest), _rounds_since(swarm, honest))
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def who_catches_up_in_vain_is_not_proposed_meanwhile() -> str:
    """A liar tells one peer that it is ahead: the peer looks for that chain and comes back, in the same attempt."""
    swarm, liar, (victim, *others) = _begin(4)
    _until(
        swarm, lambda: all(n.machine.status.state == "gathering" and n.offered is None for n in swarm.nodes.values())
    )
    before = [node.machine.status for node in others]
    victim.feed(MessageReceived(liar.name, Committed(RoundIndex(before[0].round + 3), sha(b"no such entry"))))
    _until(swarm, lambda: victim.is_recovering, 100.0)
    _until(swarm, lambda: all(n.machine.height.words.left(victim.name) is not None for n in others), 100.0)
    if any(node.machine.height.words.is_in(victim.name, node.machine.status.attempt) for node in others):
        return "the others would propose a peer that catches up"
    _until(swarm, lambda: not victim.is_recovering, 100.0)
    _until(swarm, lambda: not any(n.machine.height.words.left(victim.name) is not None for n in others), 100.0)
    after = [node.machine.status for node in others]
    if any(b.round == a.round and b.attempt != a.attempt for b, a in zip(before, after, strict=True)):
        return "the others had to go to another attempt"
    return _result(swarm)


def who_is_locked_and_never_votes_stops_no_round() -> str:
    """A contributor keeps its vote, and says for ever that it is locked like the others, in every attempt."""
    swarm, liar, honest = _begin(3)

    def lie(node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        here = honest[0].machine.height.ready_message()
        if isinstance(message, Ready) and (here.lock is not None or message.round != here.round):
            return [replace(here, contribution=None, offer=None)]
        return [] if isinstance(message, Vote | Committed | Abandon) else [message]

    assert liar.mischief is not None
    liar.mischief.messages = lie  # type: ignore[method-assign]
    liar.mischief.chain = lambda own: honest[0].machine.chain  # type: ignore[method-assign]
    rounds = _rounds_since(swarm, honest)
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def result_that_does_not_decode_is_committed_by_no_observer() -> str:
    """The only contributor votes for bytes that are no payload and gives them to all: nobody else commits that."""
    swarm, (liar, *observers) = _swarm(3, sums_kind=("real", "int2", 2), may_fork=True, has_liar=True)
    for node in observers:
        node.is_training = False
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in swarm.nodes.values()))
    _until(swarm, lambda: all(node.machine.status.state == "gathering" for node in swarm.nodes.values()))
    liar.mischief, honest = Mischief("says what follows", keys_of(liar.name), swarm.world.rng), liar.sums.reduced
    liar.sums.reduced = lambda *given: b"\xff" * len(honest(*given))  # type: ignore[method-assign]
    liar.sums.bad_segment = lambda results: None  # type: ignore[method-assign]
    liar.sums.applied = lambda digest, payload: Digest(sha(digest))  # type: ignore[method-assign]
    before = liar.machine.chain.height
    _until(swarm, lambda: liar.machine.chain.height > before + 1)
    if any(node.machine.chain.height > before for node in observers):
        return "an observer committed what does not decode"
    return _result(swarm)


def sum_that_does_not_follow_is_committed_by_nobody() -> str:
    """An owner returns another sum in one segment, the same bytes to all. With audits before votes the others do not
    vote for it, and go on without its owner."""
    swarm, nodes = _swarm(4, may_fork=True, has_liar=True)
    for node in nodes:
        node.sums.shape = replace(node.sums.shape, is_audited=True)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    liar, *honest = nodes
    liar.mischief, sums = Mischief("says what follows", keys_of(liar.name), swarm.world.rng), liar.sums.reduced

    def lie(place: tuple[int, int], *given: Any) -> bytes:
        return encode([-20.0 * value for value in struct.unpack("<2d", sums(place, *given))])

    liar.sums.reduced = lie  # type: ignore[method-assign]
    rounds = _rounds_since(swarm, honest)
    known = swarm.ledger.payloads
    for stored in (stored for node in honest for stored in node.disk.log):
        named = stored.signed.entry.contributions
        if {c.peer for c in named} == {liar.name}:
            continue  # alone it may offer what it likes: its sum is its share
        for (_, segment), data in stored.payload.items():
            if weighted_mean([(known[c.peer, c.phase][segment], c.tokens, RAMP_WHOLE) for c in named]) != data:
                return f"entry {stored.signed.entry.round} has a sum that is not that of its contributions"
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def ids_that_sort_first_take_nobodys_seat() -> str:
    """Four ids made to come before all others, with something to offer at any time, where a group has three seats: each
    phase of the sites that were there before is counted, and whoever has no seat observes."""
    swarm, honest = _swarm(2)
    swarm.limits = replace(swarm.limits, contributors_max=3)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in honest))
    for index in range(4):
        swarm.add(f"a{index}", 0.5).start()
    start = honest[0].machine.chain.height
    swarm.world.run(swarm.world.now + CALM_S)
    named = [{c.peer for c in stored.signed.entry.contributions} for stored in honest[0].disk.log[start:]]
    for node in honest:
        if (counted := sum(node.name in peers for peers in named)) < SEATED:
            return f"{node.name} is in {counted} of {len(named)} entries"
    return _result(swarm)


def _with_invented(liar: Node, others: list[Node]) -> list[Stored]:
    """Its chain and one entry more, which names all, with a phase after which nobody is in the chain again. Only the
    liar has offered something, and voted."""
    log, shape = liar.disk.log, liar.sums.shape
    below, round_index = log[-1].signed.entry, RoundIndex(len(log))
    payload = {(p, s): sha(b"invented")[:16] for p in range(shape.num_passes) for s in range(shape.num_segments)}
    named = [
        Contribution(node.name, LAST_PHASE, round_index, 10, 3000, sha(b"root"))
        for node in sorted([liar, *others], key=lambda one: one.name)
    ]
    entry = replace(
        below,
        round=round_index,
        parent=entry_hash(below),
        state_digest=liar.machine.chain.state_digest,
        contributions=tuple(named),
        result_hashes=hashes(payload),
        parent_voters=tuple(one.peer for one in below.contributions),
        evidence=(),
    )
    offers = tuple(offer_of(one) if one.peer == liar.name else Signature(b"nobody", b"x" * 16) for one in named)
    vote = keys_of(liar.name).sign(voted_for(entry, entry_hash(entry), Attempt(0)))
    return [*log, Stored(SignedEntry(entry, offers, (vote,)), payload)]


def who_did_not_offer_is_named_by_nobody() -> str:
    """R25: a liar shows heavier entries that name all the others and would lock them out for ever. Nobody takes one."""
    swarm, liar, honest = _begin(3)
    liar.mischief = mischief = Mischief("forges_a_branch", keys_of(liar.name), swarm.world.rng)

    def forge(node: Node) -> None:
        mischief.forged = _with_invented(node, honest)

    mischief.forge = forge  # type: ignore[method-assign]
    rounds = _rounds_since(swarm, honest)
    for node in honest:
        named = [one for stored in node.disk.log for one in stored.signed.entry.contributions]
        if any(one.phase == LAST_PHASE and one.peer != liar.name for one in named):
            return f"{node.name} has an entry that names who did not offer"
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


LIARS = (
    who_did_not_offer_is_named_by_nobody,
    ids_that_sort_first_take_nobodys_seat,
    sum_that_does_not_follow_is_committed_by_nobody,
    result_that_does_not_decode_is_committed_by_no_observer,
    who_raises_attempts_alone_is_not_followed,
    who_raises_attempts_together_is_not_followed,
    who_is_needed_for_a_majority_is_followed,
    who_was_led_far_away_is_followed_where_a_majority_needs_it,
    who_gives_attempts_up_and_goes_on_stops_no_round,
    who_catches_up_in_vain_is_not_proposed_meanwhile,
    who_is_locked_and_never_votes_stops_no_round,
)
