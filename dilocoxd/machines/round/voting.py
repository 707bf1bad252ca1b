"""Votes and acceptance: when an entry is decided, when the attempt is given up, what we promise before we vote.

Votes for different entries in one attempt say that somebody gave different bytes to different peers, or lies: members
show each other the hashes of the results they hold. Source: protocol/06-rounds.md, R2, R3, R10 to R12.
"""

from dataclasses import replace
from typing import Any

from dilocoxd.ids import Attempt, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.peers.record import PEERS_MAX
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.locks import HeldLock
from dilocoxd.machines.round.outcomes import CATCHING_UP, Commit, GiveUp, Outcome, Recover, Told, Violation, Waiting
from dilocoxd.machines.round.outputs import Promise, Send
from dilocoxd.machines.round.timers import DISPUTE, VOTE, Mark, earliest
from dilocoxd.wire.entry import VoteFor, voted_for
from dilocoxd.wire.messages import Accept, Accuse, ResultHashes, TakeBack, Vote


def look(height: Height, now: Monotonic) -> Outcome:
    """Commit when every voter has voted for our entry; give up when one cannot or does not."""
    attempt, book, voted_on = height.attempt, height.book, height.attempt.voted_on
    assert voted_on is not None, "voting without an entry"
    if (decided := decided_by(height, voted_on, now)) is not None:
        return decided
    exchange = attempt.exchange
    repeats = tuple(exchange.retry(now)) if exchange is not None else ()
    tally = height.votes.tally(voted_on.attempt, voted_on.entry_hash, voted_on.voters)
    retry_at = exchange.next_retry() if exchange is not None else None
    if tally.dissenting:
        return _settled(height, tally.dissenting, Waiting("", retry_at, repeats), now)
    if lost := [peer for peer in voted_on.voters if book.is_lost(peer)]:
        return GiveUp(f"lost {', '.join(lost[:3])} before it voted", orders=repeats)
    if elsewhere := observers_elsewhere(height, voted_on, now):
        for peer in elsewhere:
            height.words.gave_up(peer, voted_on.attempt)
        names = ", ".join(elsewhere[:3])
        return GiveUp(f"{names} take part in another group, or went on to a later attempt", orders=repeats)
    end = attempt.timers.end(VOTE, height.limits)
    unaccepted = height.accepts.missing(voted_on)
    if now < end:
        absent = tally.missing or unaccepted
        reason = f"the {'votes' if tally.missing else 'acceptance'} of {', '.join(absent[:3])}"
        return Waiting(reason, earliest(retry_at, end), repeats)
    if tally.votes is None:
        return GiveUp(f"no vote of {', '.join(tally.missing[:3])}", tally.missing, orders=repeats)
    # Everybody agrees; only observers that live, but do not answer, are missing. They may not stop a round.
    book.waited_in_vain(accepting=unaccepted)
    decided = decided_by(height, voted_on, now)
    assert decided is not None, f"waits without end for the acceptance of {unaccepted}"
    if isinstance(decided, Waiting):
        return decided._replace(until=earliest(retry_at, decided.until), orders=repeats)
    return replace(decided, orders=repeats)


def decided_by(height: Height, held: HeldLock, now: Monotonic) -> Commit | Recover | Waiting | None:
    """What follows when all its voters voted for this entry in its attempt; None while that is not so.

    Also for a lock of an attempt given up since."""
    tally = height.votes.tally(held.attempt, held.entry_hash, held.voters)
    if tally.votes is None or any(_is_awaited(height, held, peer, now) for peer in height.accepts.missing(held)):
        return None
    if contrary := height.book.tips.contrary(held.entry_hash, RoundIndex(height.round + 1)):
        # Who has decided another entry needed none of ours, or one that we did not hear of: compare chains first.
        return Waiting(f"recovery: {', '.join(sorted(contrary)[:3])} stand elsewhere")
    if held.results_held:
        return Commit(held, tally.votes)
    why = "an entry is decided, but only others have its payload"
    retry_at = height.book.tips.retry_at
    return Recover(why) if now >= retry_at else Waiting(f"another try: {why}", retry_at)


def _is_awaited(height: Height, held: HeldLock, peer: PeerId, now: Monotonic) -> bool:
    """Whether the commit waits for this witness, which has not accepted: it lives, and answered when it was to.

    Whether it did or not, for one that is at work elsewhere: it may commit something else there."""
    book = height.book
    if peer == height.me or not book.is_witness(peer, now) or height.is_suspected(peer):
        return False
    return not book.is_silent(peer) or peer in observers_elsewhere(height, held, now)


def observers_elsewhere(height: Height, voted_on: HeldLock, now: Monotonic) -> list[PeerId]:
    """Witnesses that are not silent, but busy: they accepted another proposal of this attempt, or vote in it, or went
    on to a later one without having accepted.

    Their group may commit, so ours must not. One that does that again and again could stop every attempt: it is left
    out, and no more than silent (R10)."""
    votes, ready = height.votes.votes, height.words.ready
    busy = {peer for peer in voted_on.observers if voted_on.attempt in votes.get(peer, {})}
    for peer in height.accepts.missing(voted_on):
        is_other = voted_on.attempt in height.accepts.accepted.get(peer, {})
        if is_other or ((said := ready(peer)) is not None and said.attempt > voted_on.attempt):
            busy.add(peer)
    return sorted(peer for peer in busy if height.book.is_witness(peer, now) and not height.is_left_out(peer))


def on_vote(height: Height, peer: PeerId, message: Vote, state: str) -> Violation | None:
    """Keep a vote for this round if it is what it says it is. Of one that is over only a contradiction counts (R27)."""
    signed, keys, known = message.vote, height.terms.site.keys, height.book.double_votes
    what = VoteFor(message.round, signed.attempt, message.parent, message.entry_hash)
    is_over = (message.round, message.parent) != (height.round, height.chain.head) or state == CATCHING_UP
    if is_over and not known.is_contrary(what, signed.peer):
        return None
    if signed.peer != peer:
        return Violation(peer, "foreign_vote", f"sends a vote of {signed.peer}")
    if not keys.is_genuine(signed, what):
        return Violation(peer, "bad_signature", "vote is not signed by its peer")
    is_contrary = known.saw(height.chain, what, signed)
    if not is_over:
        _make_room(height, height.votes.votes)
    if is_over or not height.votes.add(message) or is_contrary:
        return Violation(peer, "double_vote", f"voted twice in attempt {message.attempt} of round {message.round}")
    if message.attempt >= height.attempt.index:
        height.book.joined(peer)
    if height.attempt.exchange is not None and message.attempt == height.attempt.index:
        height.attempt.exchange.signs.add(peer)
    return None


def _make_room(height: Height, kept: dict[PeerId, Any]) -> None:
    """Ids cost nothing: beyond PEERS_MAX what was said by who is neither there nor in the chain is forgotten."""
    if len(kept) >= PEERS_MAX:
        named, live = height.chain.last_phases, height.book.live()
        for peer in [one for one in kept if one not in live and one not in named]:
            del kept[peer]


def on_accuse(height: Height, peer: PeerId, message: Accuse) -> Violation | None:
    """Somebody shows two votes of one peer; whoever brings them, they prove it or not."""
    if height.book.double_votes.hear(message.evidence, height.chain, height.terms.site.keys):
        return None
    return Violation(peer, "bad_evidence", f"what it holds against {message.evidence.peer} proves nothing")


def on_take_back(height: Height, peer: PeerId, message: TakeBack) -> Violation | None:
    """Votes to take an entry back; who brings them need not be one of the voters (R29)."""
    problem = height.book.reverts.hear(message, height.chain, height.terms.site.keys)
    return Violation(peer, "bad_signature", problem) if problem else None


def on_accept(height: Height, peer: PeerId, message: Accept) -> None:
    """An observer's promise, kept while it concerns our round."""
    height.book.accepted(peer)
    if message.round != height.round:
        return
    if message.attempt >= height.attempt.index:
        height.book.joined(peer)
    _make_room(height, height.accepts.accepted)
    height.accepts.add(peer, message.attempt, message.coordinator)


def promise_of(height: Height) -> Promise:
    """Attempt and lock, as they must be on disk before anybody hears of them (R2)."""
    lock = height.lock
    return Promise(
        round=height.round,
        parent=height.chain.head,
        attempt=height.attempt.index,
        voted_attempt=lock.attempt if lock is not None else Attempt(0),
        entry=lock.entry if lock is not None else None,
        voters=lock.voters if lock is not None else (),
        offers=lock.offers if lock is not None else (),
    )


def vote_again(height: Height) -> tuple[Send, ...]:
    """Our vote to everybody who can commit with it, while it is of this attempt."""
    attempt, own_vote = height.attempt, height.own.vote
    if own_vote is None or attempt.voted_on is None or own_vote.attempt != attempt.index:
        return ()
    if (own_vote.round, own_vote.parent) != (height.round, height.chain.head):
        return ()  # of an earlier round, or of a branch that we left: an observer has something to vote on, too
    return height.sends(sorted({*attempt.voted_on.voters, *attempt.observers}), own_vote)


def signed_vote(height: Height, voted_on: HeldLock) -> Vote:
    """Our vote for it in this attempt. Only after the promise is on its way to the disk."""
    signed = height.terms.site.keys.sign(voted_for(voted_on.entry, voted_on.entry_hash, height.attempt.index))
    return Vote(height.round, height.chain.head, voted_on.entry_hash, signed)


# --- disputes


def on_result_hashes(height: Height, peer: PeerId, message: ResultHashes, now: Monotonic) -> Told | None:
    """What a member of our attempt holds; shown before we know of a dispute, it opens one."""
    attempt, exchange = height.attempt, height.attempt.exchange
    if exchange is None or not exchange.is_of(message.round, message.attempt):
        return None
    if peer not in exchange.by_peer or attempt.voted_on is None:
        return None
    told = _opened(height, exchange, now)
    if attempt.timers.is_running(Mark.DISPUTE):
        attempt.shown[peer] = tuple(message.hashes)
    return Told(told)


def _settled(height: Height, dissenting: tuple[PeerId, ...], meanwhile: Waiting, now: Monotonic) -> GiveUp | Waiting:
    """Give up the attempt and name who is wrong, as soon as those who voted otherwise have shown their results.

    `meanwhile`: what else is to be done and looked at while we wait."""
    attempt, exchange = height.attempt, height.attempt.exchange
    orders = (*meanwhile.orders, *(_opened(height, exchange, now) if exchange is not None else ()))
    if exchange is None or not attempt.timers.is_running(Mark.DISPUTE):
        return GiveUp("votes for different entries without an exchange", dissenting, orders=orders)
    silent = [peer for peer in dissenting if peer not in attempt.shown]
    end = attempt.timers.end(DISPUTE, height.limits)
    if silent and now < end:
        reason = f"the result hashes of {', '.join(silent[:3])}, who voted for another entry"
        return meanwhile._replace(reason=reason, until=earliest(meanwhile.until, end), orders=orders)
    blamed = {
        culprit for peer in dissenting for culprit in culprits(height.me, exchange, peer, attempt.shown.get(peer))
    }
    reason = f"votes for different entries; wrong by what we saw: {', '.join(sorted(blamed)[:3])}"
    return GiveUp(reason, tuple(blamed), orders=orders)


def _opened(height: Height, exchange: Exchange, now: Monotonic) -> tuple[Send, ...]:
    """Show what we hold, once; observers hold it too but are not asked."""
    attempt = height.attempt
    if attempt.timers.is_running(Mark.DISPUTE) or exchange.result_hashes is None:
        return ()
    attempt.timers.start(Mark.DISPUTE, now)
    return height.sends(exchange.group, ResultHashes(height.round, attempt.index, exchange.result_hashes))


def culprits(me: PeerId, exchange: Exchange, peer: PeerId, shown: tuple[bytes, ...] | None) -> set[PeerId]:
    """Owners of the segments in which `peer` differs from us; `peer` itself if it shows nothing that explains its vote,
    or contradicts what we sent it as an owner."""
    ours = exchange.result_hashes
    if shown is None or ours is None or len(shown) != len(ours):
        return {peer}
    count = exchange.shape.num_segments
    owners = {
        exchange.owners[place % count] for place, pair in enumerate(zip(ours, shown, strict=True)) if pair[0] != pair[1]
    }
    return {peer if owner == me else owner for owner in owners} or {peer}
