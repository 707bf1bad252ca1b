"""One attempt at a round, up to the exchange: readiness, proposals, joining and giving up. Functions on `Core`.

Source: protocol/06-rounds.md; docs/internals.md 3.1-3.8.
"""

from collections.abc import Iterable
from dataclasses import replace

from dilocoxd.errors import ProtocolViolation
from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId
from dilocoxd.rounds import core as states
from dilocoxd.rounds.ballots import persist_promise, repeat_proposal, vote
from dilocoxd.rounds.commands import AttemptFailed, CancelTransfers, ReportPeer
from dilocoxd.rounds.coordinator import (
    Decision,
    Gathered,
    assign_owners,
    coordinator_order,
    decide_group,
    grace_end,
    lasting_owners,
    missing_majority,
    proposal_problem,
)
from dilocoxd.rounds.core import Core, Pending
from dilocoxd.rounds.exchange import Exchange
from dilocoxd.rounds.votes import HeldLock, LockDecision, resolve_locks
from dilocoxd.wire.entry import Contribution
from dilocoxd.wire.messages import Abandon, Accept, Propose, ProposeCommit, Ready


def announce(core: Core) -> None:
    """Broadcast where we stand and remember it like everybody else's Ready."""
    ready = core.ready_message()
    core.gathering.note(core.me, ready, core.now)
    core.broadcast(ready)
    core.repeat_at = Monotonic(core.now + core.limits.ready_repeat_s)


def enter_attempt(core: Core, attempt: Attempt) -> None:
    """Promise never to vote below `attempt` again, and say so."""
    core.attempt = attempt
    core.attempt_started_at = core.now
    core.exchange = None
    core.ballot = None
    core.dispute = None
    core.pending = {}
    core.coordinator = None
    core.decided_since = None
    core.outside_since = None
    core.outside_of = set()
    core.promised_to = None
    core.state = states.GATHERING
    if attempt > 0:
        # At a new height what observers still get from the round before goes on until RESULT is needed again (_accept).
        core.emit(CancelTransfers(core.round, attempt))
        persist_promise(core)
    announce(core)


def fail_attempt(core: Core, reason: str, blames: Iterable[PeerId] = (), *, is_told: bool = True) -> None:
    """Give up the running attempt and go to the next one that anybody is in.

    `is_told` False: others gave it up first; Ready says enough, and we must not look like the cause."""
    blamed = tuple(sorted(set(blames) - {core.me}))[:64]
    core.failures.append(reason)
    core.emit(AttemptFailed(core.round, core.attempt, reason))
    core.gathering.conflicts.blame(core.me, blamed, core.round)
    if is_told:
        core.broadcast(Abandon(core.round, core.attempt, reason[:500], blamed))
    enter_attempt(core, core.gathering.latest_attempt(core.live(), Attempt(core.attempt + 1)))


def on_ready(core: Core, peer: PeerId, ready: Ready) -> None:
    """A Ready for our round and head, with our bits. A later attempt is joined, unless we run one without this peer."""
    # Who comes late cannot know how far the others are: it believes two that agree, or the only other one there is.
    is_alone_with_it = not core.live() - {core.me, peer}
    known = core.gathering.known_attempt(peer, core.attempt)
    core.gathering.hear_attempt(peer, ready.attempt, known, is_alone_with_it=is_alone_with_it)
    if ready.attempt > known + core.limits.attempt_jump_max and not is_alone_with_it:
        raise ProtocolViolation(peer, "attempt_jump", f"attempt {ready.attempt}, nobody is beyond {known}")
    if ready.contribution is not None and ready.contribution.peer != peer:
        raise ProtocolViolation(peer, "foreign_contribution", f"offers a contribution of {ready.contribution.peer}")
    core.goodbye(peer, is_gone=False)
    core.gathering.note(peer, ready, core.now)
    if ready.attempt > core.attempt and core.is_live(peer):
        if core.state == states.GATHERING:
            if (latest := core.gathering.latest_attempt(core.live(), core.attempt)) > core.attempt:
                enter_attempt(core, latest)
        elif core.state in (states.EXCHANGING, states.VOTING) and core.needs(peer):
            core.gathering.gave_up(peer, core.attempt)
            fail_attempt(core, f"{peer} went on to attempt {ready.attempt}", is_told=False)
    else:
        repeat_proposal(core, peer)


def on_abandon(core: Core, peer: PeerId, abandon: Abandon) -> None:
    """A member gave up our attempt: so do we. Complaints are remembered whoever makes them."""
    if abandon.round != core.round:
        return
    core.gathering.conflicts.blame(peer, abandon.blames, core.round)
    core.gathering.gave_up(peer, abandon.attempt)
    is_ours = abandon.attempt == core.attempt and peer in core.parties()
    if is_ours and core.state in (states.EXCHANGING, states.VOTING):
        fail_attempt(core, f"{peer} gave up: {abandon.reason}", is_told=False)


def on_proposal(core: Core, peer: PeerId, message: Propose | ProposeCommit) -> None:
    """Remember a proposal for our attempt; a later attempt is joined first."""
    if message.round != core.round or core.state not in (states.GATHERING, states.EXCHANGING, states.VOTING):
        return
    if isinstance(message, Propose) and Digest(message.parent) != core.chain.head:
        return
    if isinstance(message, Propose) and core.me not in {*message.observers, *(c.peer for c in message.contributions)}:
        if core.state == states.GATHERING and core.is_live(peer):
            core.outside_since = core.now
            core.outside_of.add(peer)
            core.waiting_for = f"the round of {peer}, which goes on without us"
        return
    if message.attempt > core.attempt and core.state == states.GATHERING:
        if message.attempt > core.attempt + core.limits.attempt_jump_max:
            raise ProtocolViolation(peer, "attempt_jump", f"proposal for attempt {message.attempt}")
        if core.gathering.is_restless(peer):
            return
        enter_attempt(core, message.attempt)
    # What is promised to one proposal of this attempt cannot go to another one, nor to a second of the same peer.
    if message.attempt == core.attempt and core.state == states.GATHERING and core.promised_to is None:
        known = core.pending.get(peer)
        received = known.received_at if known is not None else core.now
        core.pending[peer] = Pending(message, received)


def gather(core: Core) -> None:
    """Take up a proposal, make one if that is our role, or say what is missing."""
    live = core.live()
    latest = core.gathering.latest_attempt(live, core.attempt)
    if latest > core.attempt:
        enter_attempt(core, latest)
    if pressing := core.drift.pressing():
        core.waiting_for = f"recovery: {', '.join(sorted(pressing)[:3])} stand elsewhere"
        return
    if core.outstanding:
        _promise_only(core)
        core.waiting_for = "the outer worker, which finishes an order of an abandoned attempt"
        return
    order = core.candidates()
    if core.pending:
        _consider_pending(core, order)
    if core.state != states.GATHERING:
        return
    locks = _locks(core)
    decision = _decide(core)
    if order[0] == core.me and core.outside_since is None and core.promised_to is None:
        _coordinate(core, locks, decision)
    else:
        core.waiting_for = f"a proposal of {order[0]} ({locks.reason if not locks.is_free else decision.reason})"
    if core.state == states.GATHERING:
        _watch_silence(core, locks, decision, order[0])


def _consider_pending(core: Core, order: list[PeerId]) -> None:
    for peer in coordinator_order(core.site.run_id, core.round, core.attempt, core.pending):
        is_elsewhere = core.promised_to is not None and core.promised_to[0] != peer
        if is_elsewhere or core.state != states.GATHERING or peer not in core.pending:
            continue
        if core.promised_to is not None or _is_legitimate(core, peer, order):
            try:
                _consider(core, peer, core.pending[peer].message)
            except ProtocolViolation as violation:
                core.pending.pop(peer, None)
                core.emit(ReportPeer(peer, violation.rule, violation.detail))


def _promise_only(core: Core) -> None:
    """We cannot receive yet (our outer worker may be starting), but the members of a proposal that we only observe need
    not wait for that: what they want of us is that we take part in nothing else."""
    order = core.candidates()
    for peer in coordinator_order(core.site.run_id, core.round, core.attempt, core.pending):
        message = core.pending[peer].message
        if core.promised_to is not None or not isinstance(message, Propose) or core.me not in message.observers:
            continue
        problem = proposal_problem(message, core.chain, core.shape, core.limits)
        problem = problem or _quorum_problem(core, (c.peer for c in message.contributions))
        if not problem and _is_legitimate(core, peer, order) and _locks(core).is_free:
            core.promised_to = (peer, message)
            send_accept(core)


def _locks(core: Core) -> LockDecision:
    """With `quorum = available` an entry whose payload nobody live holds is given up: a fork if it was committed."""
    may_fork = not core.limits.has_majority_quorum
    live = core.present()
    if core.gathering.raises:
        live = frozenset([peer for peer in live if not core.gathering.is_restless(peer)])
    return resolve_locks(core.locks(), live, core.attempt, may_fork=may_fork)


def _is_legitimate(core: Core, peer: PeerId, order: list[PeerId]) -> bool:
    """First candidate, or all better ones had their time.

    Not while a round of this attempt goes on without us: two groups could commit. But one peer alone that says so, it
    may lie, keeps us only from proposals that have to be waited out.
    """
    if core.outside_since is not None:
        return order[0] == peer and len(core.outside_of & core.live()) < 2
    if order[0] == peer:
        return True
    return core.is_over(core.pending[peer].received_at + core.limits.coordinator_patience_s / 2)


def _gathered(core: Core) -> Gathered:
    started = core.attempt_started_at
    return core.gathering.gathered(core.chain, core.present_views(), core.attempt, started, core.mute)


def _decide(core: Core) -> Decision:
    gathered = _gathered(core)
    decision = decide_group(gathered, core.limits, now=core.now)
    if decision.until is not None:
        core.is_over(decision.until)
    if decision.group is not None:
        core.mute |= gathered.unready
    if decision.group is not None and core.now >= grace_end(gathered, core.limits):
        core.gathering.give_up(gathered.awaited, core.now)
    return decision


def _coordinate(core: Core, locks: LockDecision, decision: Decision) -> None:
    """We are the coordinator: finish a locked entry, or propose a group, or wait with the reason."""
    message: Propose | ProposeCommit
    if locks.commit is not None:
        if reason := _quorum_problem(core, locks.voters) or _missing_promises(core) or _unheard_voters(core, locks):
            core.waiting_for = reason
            return
        message = ProposeCommit(core.round, core.attempt, locks.commit, tuple(sorted(locks.voters)))
        targets = set(locks.voters)
    elif not locks.is_free:
        core.waiting_for = locks.reason
        return
    elif decision.group is None:
        core.waiting_for = decision.reason
        return
    else:
        message = _proposal(core, decision.group)
        targets = {*(c.peer for c in message.contributions), *message.observers}
    for peer in sorted(targets):
        core.send(peer, message)
    core.coordinator = core.me
    if core.me in targets:
        _consider(core, core.me, message)
    else:
        core.outside_since = core.now
        core.waiting_for = "the others, who finish a locked entry"


def _missing_promises(core: Core) -> str:
    """Why a locked entry must not be finished yet: a live peer that has not joined this attempt may still take part in
    another group of an earlier one. Empty when all have, or had their time."""
    missing = _gathered(core).unready
    if not missing or core.is_over(core.attempt_started_at + core.limits.progress_timeout_s):
        core.mute |= missing
        return ""
    return f"{', '.join(sorted(missing)[:3])} to join this attempt, in which a locked entry is finished"


def _unheard_voters(core: Core, locks: LockDecision) -> str:
    """Why we, who have just started, must not finish a locked entry yet: others that are not heard yet may have gone
    on without us meanwhile. Empty when all voters and somebody else are here, or had their time."""
    absent = set(locks.commit.voters if locks.commit is not None else ()) - set(locks.voters)
    is_alone = not core.live() - {core.me}
    if not (absent or is_alone) or core.is_over(core.started_at + core.limits.progress_timeout_s):
        return ""
    return f"{', '.join(sorted(absent)[:3]) or 'others'}, who may have gone on before we were restarted"


def _can_finish(core: Core, locks: LockDecision) -> bool:
    """A locked entry could be finished now by what we know."""
    is_possible = locks.commit is not None and not _quorum_problem(core, locks.voters)
    return is_possible and not _missing_promises(core) and not _unheard_voters(core, locks)


def _quorum_problem(core: Core, voters: Iterable[PeerId]) -> str:
    if not core.limits.has_majority_quorum:
        return ""
    return missing_majority(frozenset(voters), core.chain.recent_contributors)


def _proposal(core: Core, group: tuple[Contribution, ...]) -> Propose:
    peers = [c.peer for c in group]
    readies = core.gathering.readies
    is_in = core.gathering.is_in
    observers = sorted(p for p in readies if p not in peers and core.is_live(p) and is_in(p, core.attempt))
    before = core.gathering.last_owners
    known = {peer: index for index, peer in enumerate(peers)}
    previous = [known.get(owner) for owner in before] if before else None
    bandwidths = [readies[peer].bandwidth for peer in peers]
    sizes = core.shape.segment_bytes
    owners = None if previous else lasting_owners(core.gathering.owners_before, peers, sizes, bandwidths)
    return Propose(
        round=core.round,
        attempt=core.attempt,
        parent=core.chain.head,
        state_digest=core.chain.state_digest,
        contributions=group,
        observers=tuple(observers),
        owners=owners or assign_owners(sizes, bandwidths, previous),
        lowrank_r=core.chain.lowrank_r,
        next_lowrank_r=core.chain.announced[0],
        next_inner_steps=core.chain.announced[1],
    )


def _consider(core: Core, peer: PeerId, message: Propose | ProposeCommit) -> None:
    if isinstance(message, ProposeCommit):
        _consider_commit(core, peer, message)
        return
    problem = proposal_problem(message, core.chain, core.shape, core.limits)
    problem = problem or _quorum_problem(core, (c.peer for c in message.contributions))
    if problem:
        raise ProtocolViolation(peer, "bad_proposal", problem)
    mine = next((c for c in message.contributions if c.peer == core.me), None)
    if not _locks(core).is_free:
        return
    if mine is not None and (core.offer is None or core.offer.contribution != mine):
        fail_attempt(core, f"{core.me} does not offer what {peer} proposed for it")
        return
    _accept(core, peer, message)


def _accept(core: Core, peer: PeerId, propose: Propose) -> None:
    if core.lock is not None:
        core.lock = replace(core.lock, results_held=False)
    core.emit(CancelTransfers(core.round, core.attempt))
    core.inbox.open(propose.contributions, core.me)
    missing = core.chain.missing(len(propose.contributions))
    core.exchange = Exchange(core.me, core.shape, propose, core.inbox, core.now, missing)
    core.gathering.last_owners = core.exchange.owners
    core.coordinator = peer
    core.pending = {}
    core.state = states.EXCHANGING
    core.times.gathered_at = core.now
    hashes = core.offer.segment_hashes if core.offer is not None else ()
    core.emit(*core.exchange.start(hashes))
    send_accept(core)


def send_accept(core: Core) -> None:
    """As an observer: promise the members to take part in nothing else in this attempt."""
    exchange = core.exchange
    if exchange is not None and core.coordinator is not None:
        coordinator, propose = core.coordinator, exchange.propose
    elif core.promised_to is not None:
        coordinator, propose = core.promised_to
    else:
        return
    if core.me in propose.observers:
        for peer in (*(c.peer for c in propose.contributions), *propose.observers):
            core.send(peer, Accept(core.round, core.attempt, coordinator))


def _consider_commit(core: Core, peer: PeerId, message: ProposeCommit) -> None:
    lock = core.lock
    if core.me not in message.voters:
        core.outside_since = core.outside_since if core.outside_since is not None else core.now
        return
    if lock is None or lock.entry_hash != message.lock.entry_hash:
        raise ProtocolViolation(peer, "bad_proposal", "asks us to finish an entry that we are not locked on")
    if not set(message.voters) <= set(lock.voters):
        raise ProtocolViolation(peer, "bad_proposal", "names voters that are not contributors of the entry")
    if problem := _quorum_problem(core, message.voters):
        raise ProtocolViolation(peer, "bad_proposal", problem)
    core.coordinator = peer
    core.pending = {}
    ballot = HeldLock(core.attempt, lock.entry, lock.entry_hash, message.voters, lock.results_held)
    core.times.gathered_at = core.times.exchanged_at = core.now
    vote(core, ballot)


def _watch_silence(core: Core, locks: LockDecision, decision: Decision, coordinator: PeerId) -> None:
    """A round could go on by what we know, but nobody proposes: then the next attempt, with another coordinator."""
    limits = core.limits
    ready_at = core.gathering.first_ready_at
    grace_over = (ready_at if ready_at is not None else core.now) + core.gathering.pace.grace(limits)
    if core.outside_since is not None:
        limit, since = limits.progress_timeout_s + limits.vote_timeout_s, core.outside_since
    elif _can_finish(core, locks) or (locks.is_free and decision.group is not None):
        core.decided_since = core.decided_since if core.decided_since is not None else core.now
        # The coordinator may wait for peers that we believe to be slow: its grace counts, not only our decision.
        limit, since = limits.coordinator_patience_s, Monotonic(max(core.decided_since, grace_over))
    elif not locks.is_free and locks.commit is None:
        limit, since = limits.progress_timeout_s, core.attempt_started_at
    else:
        core.decided_since = None
        return
    if core.is_over(since + limit):
        fail_attempt(core, f"no proposal of {coordinator} for {limit:g} s", is_told=False)
