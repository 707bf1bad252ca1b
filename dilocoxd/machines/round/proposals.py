"""Proposals of an attempt: which one is taken up and when, what our own says, what an observer promises.

Decides nothing about who should be in a group (grouping.py, gathering.py). Source: protocol/06-rounds.md, R4, R7, R8,
R13.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.orders import CancelTransfers
from dilocoxd.machines.exchange.owners import assign_owners, lasting_owners
from dilocoxd.machines.round.attempt import Proposal
from dilocoxd.machines.round.grouping import (
    members,
    missing_majority,
    proposal_problem,
    unseconded,
    without_conflicts,
)
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.locks import LockDecision, is_disproved
from dilocoxd.machines.round.outcomes import GATHERING, GiveUp, Join, Outcome, TakeUp, Told, Violation, VoteOn, Waiting
from dilocoxd.machines.round.outputs import Command, ReportPeer, Send
from dilocoxd.machines.round.timers import OTHER_CANDIDATE, Mark, earliest
from dilocoxd.wire.entry import CONTRIBUTORS_MAX, Contribution, Evidence
from dilocoxd.wire.messages import Accept, Lock, Propose, ProposeCommit

AT_ONCE: Final = Monotonic(0.0)


def on_proposal(height: Height, peer: PeerId, message: Proposal, state: str, now: Monotonic) -> Join | Violation | None:
    """Remember a proposal while we gather; a later attempt is joined first, an earlier one is over here."""
    if state != GATHERING or message.round != height.round or message.attempt < height.attempt.index:
        return None
    if isinstance(message, Propose) and Digest(message.parent) != height.chain.head:
        return None
    if height.is_left_out_of(message) and not height.book.is_live(peer):
        return None
    for evidence in message.evidence if isinstance(message, Propose) else ():
        if not height.book.double_votes.hear(evidence, height.chain, height.terms.site.keys):
            return Violation(peer, "bad_evidence", f"what it holds against {evidence.peer} proves nothing")
    if message.attempt == height.attempt.index:
        height.keep(peer, message, now)
        return None
    if (violation := height.hear_attempt(peer, message.attempt)) is not None:
        return violation
    return None if height.is_suspected(peer) else Join(message.attempt, (peer, message))


def take_up(height: Height, order: Sequence[PeerId], now: Monotonic) -> Outcome:
    """The first proposal that may be taken up now; else when to look again. Broken ones are reported and dropped."""
    attempt = height.attempt
    reports: list[Command] = []
    until: Monotonic | None = None
    for peer in height.ordered(attempt.proposals):
        promised = attempt.promised_to
        if promised is not None and promised[0] != peer:
            continue
        counts_at = AT_ONCE if promised is not None else _counts_at(height, peer, order)
        if counts_at is None or now < counts_at:
            until = earliest(until, counts_at)
            continue
        found = _considered(height, peer, attempt.proposals[peer], now)
        if isinstance(found, Violation):
            attempt.drop(peer)
            reports.append(ReportPeer(peer, found.rule, found.detail))
        elif found is not None:
            return _after(reports, found)
    return Waiting("a proposal that counts", until, tuple(reports))


def promise_only(height: Height, order: Sequence[PeerId], now: Monotonic) -> Waiting:
    """We cannot receive yet (our outer worker may be starting), but the members of a proposal that we only observe need
    not wait for that: what they want of us is that we take part in nothing else."""
    attempt = height.attempt
    until: Monotonic | None = None
    orders: tuple[Command, ...] = ()
    for peer in height.ordered(attempt.proposals):
        message = attempt.proposals[peer]
        if attempt.promised_to is not None or not isinstance(message, Propose) or height.me not in message.observers:
            continue
        if _problem(height, message) or _has_only_left_out(height, message):
            continue
        counts_at = _counts_at(height, peer, order)
        if counts_at is None or now < counts_at:
            until = earliest(until, counts_at)
        elif height.lock_decision().is_free:
            attempt.promised_to = (peer, message)
            orders = acceptance(height)
    return Waiting("to be able to receive", until, orders)


def propose(height: Height, locks: LockDecision, group: tuple[Contribution, ...], now: Monotonic) -> Outcome:
    """As the coordinator: have a locked entry finished, or propose a group, and take part ourselves."""
    attempt = height.attempt
    message: Proposal
    if locks.commit is not None:
        voters = named_voters(height, locks, locks.commit)
        message = attempt.finishing = ProposeCommit(height.round, attempt.index, locks.commit, tuple(sorted(voters)))
        targets = set(voters)
    else:
        message = group_proposal(height, group, now)
        targets = members(message)
    sends = height.sends(sorted(targets), message)
    if height.me in targets:
        found = _considered(height, height.me, message, now)
        assert found is not None and not isinstance(found, Violation), "our own proposal breaks a rule"
        return _after(sends, found)
    attempt.coordinator = height.me
    attempt.timers.restart(Mark.LEFT_OUT, now)
    return Waiting("the others, who finish a locked entry", None, sends)


def named_voters(height: Height, locks: LockDecision, lock: Lock) -> frozenset[PeerId]:
    """Whom of the voters that are ready we ask to finish the entry: those of whom we would make a group (R13.6). All
    are locked on it, so none is needed to know that it stands; one that never votes would stop the round for ever."""
    everybody, said = frozenset(locks.voters), height.locks_here()
    pairs = height.book.conflicts.repeated(height.round)
    ours = {about for complains, about in pairs if complains == height.me}
    fresh = frozenset(filter(height.chain.is_on_probation, everybody))
    at_peace = without_conflicts(everybody - ours, pairs, fresh)
    steady = frozenset(peer for peer in at_peace if not height.is_left_out(peer))

    def have_it(peers: frozenset[PeerId]) -> bool:
        return any(one is not None and one.results_held for one in map(said.get, peers))

    for chosen in (steady, at_peace):
        if chosen and not finish_problem(height, chosen, lock) and have_it(chosen) >= have_it(everybody):
            return chosen
    return everybody


def finish_problem(height: Height, voters: frozenset[PeerId], lock: Lock) -> str:
    """Why these voters cannot finish this locked entry; empty if they can."""
    own = height.lock
    is_ours = own is not None and own.entry_hash == lock.entry_hash
    evidence = own.entry.evidence if own is not None and is_ours else height.evidence()
    return quorum_problem(height, voters, evidence)


def group_proposal(height: Height, group: tuple[Contribution, ...], now: Monotonic) -> Propose:
    """The proposal of this group: who observes it, and who reduces what."""
    readies, chain = height.words.readies(), height.chain
    peers = [c.peer for c in group]
    observers = [p for p in _witnesses(height, readies, now) if p not in peers]
    bandwidths = [readies[peer].bandwidth for peer in peers]
    return Propose(
        round=height.round,
        attempt=height.attempt.index,
        parent=chain.head,
        state_digest=chain.state_digest,
        contributions=group,
        offers=tuple(offer for peer in peers if (offer := readies[peer].offer) is not None),
        observers=tuple(sorted(p for p in observers if height.words.is_in(p, height.attempt.index))),
        owners=_owners(height, peers, bandwidths),
        lowrank_r=chain.lowrank_r,
        next_lowrank_r=chain.announced[0],
        next_inner_steps=chain.announced[1],
        parent_voters=chain.tip_voters,
        evidence=height.evidence(),
    )


def _witnesses(height: Height, readies: Iterable[PeerId], now: Monotonic) -> list[PeerId]:
    """Who of them may observe: of those whom membership does not know, as many as are live (R8.7)."""
    book = height.book
    live, others = [p for p in readies if book.is_live(p)], [p for p in readies if not book.is_live(p)]
    strangers = [p for p in height.ordered(others) if book.is_witness(p, now)]
    return [*live, *strangers[: max(0, min(len(book.live()), CONTRIBUTORS_MAX - len(live)))]]


def _owners(height: Height, peers: Sequence[PeerId], bandwidths: Sequence[int]) -> tuple[int, ...]:
    """Who reduces which segment, as indices of `peers` (X1); where everybody does (X11), nobody is named. Nobody sums
    for others while it is on probation (M11)."""
    shape = height.terms.shape
    if shape.is_gathered:
        return (0,) * shape.num_segments
    places = [place for place, peer in enumerate(peers) if not height.chain.is_on_probation(peer)]
    able, rates = [peers[place] for place in places], [bandwidths[place] for place in places]
    if height.owners:
        known = {peer: index for index, peer in enumerate(able)}
        found = assign_owners(shape.segment_bytes, rates, [known.get(owner) for owner in height.owners])
    else:
        lasting = lasting_owners(height.owners_before, able, shape.segment_bytes, rates)
        found = lasting or assign_owners(shape.segment_bytes, rates)
    return tuple(places[index] for index in found)


def begin(height: Height, taken: TakeUp, now: Monotonic) -> tuple[Command, ...]:
    """Take up a proposal: what was ordered for other attempts ends, the exchange begins, observers accept."""
    own, attempt, told = height.own, height.attempt, taken.propose
    if (lock := height.lock) is not None:
        # RESULT is needed again. Who proved the lock void may be gone when others ask next: they must not finish it.
        height.lock = None if is_disproved(lock, height.locks_here()) else replace(lock, results_held=False)
    own.inbox.open(told.contributions, height.me)
    chain, peers = height.chain, [c.peer for c in told.contributions]
    missing = chain.missing(sum(not chain.is_on_probation(peer) for peer in peers))
    exchange = Exchange(height.me, height.terms.shape, told, own.inbox, missing, chain.ramps(peers))
    height.owners = exchange.owners
    height.times.gathered_at = now
    attempt.begin(taken.coordinator, exchange, now)
    hashes = own.offer.segment_hashes if own.offer is not None else ()
    return (CancelTransfers(height.round, attempt.index), *exchange.start(hashes), *acceptance(height))


def acceptance(height: Height) -> tuple[Send, ...]:
    """As an observer: promise the members to take part in nothing else in this attempt (R8)."""
    attempt = height.attempt
    if attempt.exchange is not None and attempt.coordinator is not None:
        coordinator, told = attempt.coordinator, attempt.exchange.propose
    elif attempt.promised_to is not None:
        coordinator, told = attempt.promised_to
    else:
        return ()
    if height.me not in told.observers:
        return ()
    members = (*(c.peer for c in told.contributions), *told.observers)
    return height.sends(members, Accept(height.round, attempt.index, coordinator))


def repeated(height: Height, peer: PeerId) -> Told | None:
    """A peer says Ready in our attempt and shows no sign of what we take part in: the proposal was lost, or came while
    it caught up (R4)."""
    attempt = height.attempt
    exchange, commit, is_ours = attempt.exchange, attempt.finishing, attempt.coordinator == height.me
    if exchange is not None and not exchange.has_sign_of(peer):
        # To a member, from the coordinator: take part. To anybody else, from any member: wait for what we do.
        if is_ours or peer not in exchange.members:
            return Told(height.sends([peer], exchange.propose))
    elif commit is not None and peer in commit.voters and attempt.index not in height.votes.votes.get(peer, {}):
        return Told(height.sends([peer], commit))
    return None


def _after(orders: Sequence[Command], found: TakeUp | VoteOn | GiveUp) -> Outcome:
    """The same with these orders before it."""
    if isinstance(found, TakeUp):
        return TakeUp(found.coordinator, found.propose, tuple(orders))
    if isinstance(found, VoteOn):
        return VoteOn(found.voted_on, tuple(orders))
    return GiveUp(found.reason, found.blames, found.is_told, tuple(orders))


def _counts_at(height: Height, peer: PeerId, order: Sequence[PeerId]) -> Monotonic | None:
    """From when on the peer's proposal counts: it is the first candidate, or all better ones had their time (R4).

    None while a round of this attempt goes on without us: two groups could commit. But one peer alone that says so, it
    may lie, keeps us only from proposals that have to be waited out (R8).
    """
    attempt = height.attempt
    if attempt.is_left_out:
        is_believed = len(attempt.left_out_by & height.book.live()) >= 2
        return AT_ONCE if order[0] == peer and not is_believed else None
    return AT_ONCE if order[0] == peer else attempt.timers.end(OTHER_CANDIDATE, height.limits, peer)


def _considered(
    height: Height, peer: PeerId, message: Proposal, now: Monotonic
) -> TakeUp | VoteOn | GiveUp | Violation | None:
    """What a proposal that counts leads to; None: it is not taken up yet."""
    if isinstance(message, ProposeCommit):
        return _considered_commit(height, peer, message, now)
    if problem := _problem(height, message):
        return Violation(peer, "bad_proposal", problem)
    if not height.lock_decision().is_free or _has_only_left_out(height, message):
        return None
    mine = next((c for c in message.contributions if c.peer == height.me), None)
    offer = height.own.offer
    if mine is not None and (offer is None or offer.contribution != mine):
        return GiveUp(f"{height.me} does not offer what {peer} proposed for it")
    return TakeUp(peer, message)


def _considered_commit(
    height: Height, peer: PeerId, message: ProposeCommit, now: Monotonic
) -> VoteOn | Violation | None:
    lock = height.lock
    if height.book.reverts.is_void(message.lock.entry_hash):
        return None  # the peer has not heard that the entry was taken back (R29)
    if height.me not in message.voters:
        if height.book.is_live(peer) and not height.words.is_false_alarm(peer):
            height.attempt.note_left_out(peer, now)
        return None
    if lock is None or lock.entry_hash != message.lock.entry_hash:
        return Violation(peer, "bad_proposal", "asks us to finish an entry that we are not locked on")
    if not set(message.voters) <= set(lock.voters):
        return Violation(peer, "bad_proposal", "names voters that are not contributors of the entry")
    if problem := quorum_problem(height, frozenset(message.voters), lock.entry.evidence):
        return Violation(peer, "bad_proposal", problem)
    height.attempt.coordinator = peer
    height.times.gathered_at = height.times.exchanged_at = now
    # Votes are of this attempt, results of another: who voted did not sign that it had returned these (X14).
    finished = replace(lock, attempt=height.attempt.index, voters=message.voters, owners=())
    return VoteOn(replace(finished, coordinator=None, observers=()))


def _problem(height: Height, propose: Propose) -> str:
    """Which rule the proposal breaks; empty if none."""
    if problem := proposal_problem(propose, height.chain, height.terms.shape, height.limits):
        return problem
    peers = frozenset(c.peer for c in propose.contributions)
    for found in propose.evidence:
        if not height.book.double_votes.proves(found, height.terms.site.keys):
            return f"what it holds against {found.peer} proves nothing"
    return quorum_problem(height, peers, propose.evidence)


def _has_only_left_out(height: Height, propose: Propose) -> bool:
    """Whether it names only peers that voted twice while, as far as we know, somebody else trains (R27.6). Its
    coordinator may not have heard of that: no fault, but it is not taken up as long as that is so."""
    peers = frozenset(c.peer for c in propose.contributions)
    if not peers <= height.chain.left_out_by(propose.evidence):
        return False
    return peers <= height.left_out_beside(propose.evidence)


def quorum_problem(height: Height, voters: frozenset[PeerId], evidence: tuple[Evidence, ...]) -> str:
    """Why these voters cannot commit: none of them may (M11), or `quorum = majority` forbids it (R14); else empty.
    `evidence`: what the entry holds; whom it proves to have voted twice does not count."""
    if (problem := unseconded(voters, height.chain)) or not height.limits.has_majority_quorum:
        return problem
    return missing_majority(voters, height.chain.electorate(evidence))
