"""Promises and votes: what goes to disk before it goes to others. Functions on `Core`.

Source: protocol/06-rounds.md (vote, lock, promise).
"""

from dilocoxd.errors import ProtocolViolation
from dilocoxd.ids import Attempt, Digest, PeerId
from dilocoxd.rounds import core as states
from dilocoxd.rounds.commands import PersistPromise, Promise
from dilocoxd.rounds.core import Core
from dilocoxd.rounds.votes import HeldLock
from dilocoxd.wire.entry import vote_text
from dilocoxd.wire.messages import ProposeCommit, Vote


def persist_promise(core: Core) -> None:
    """Put attempt and lock on disk; what follows in the batch relies on it."""
    lock = core.lock
    promise = Promise(
        round=core.round,
        parent=core.chain.head,
        attempt=core.attempt,
        voted_attempt=lock.attempt if lock is not None else Attempt(0),
        entry=lock.entry if lock is not None else None,
        voters=lock.voters if lock is not None else (),
    )
    if promise != core.promised:
        core.promised = promise
        core.emit(PersistPromise(promise))


def vote(core: Core, ballot: HeldLock) -> None:
    """Wait for the voters of this entry; if we are one of them: lock, persist, then vote."""
    core.ballot = ballot
    core.state = states.VOTING
    core.voting_since = core.now
    if core.me not in ballot.voters:
        return
    core.lock = ballot
    if core.offer is not None and core.offer.contribution in ballot.entry.contributions:
        core.voted_phase = core.offer.contribution.phase
    persist_promise(core)
    signed = core.site.keys.sign(vote_text(core.site.run_id, ballot.entry_hash))
    core.own_vote = Vote(core.round, core.attempt, ballot.entry_hash, signed)
    core.votes.add(core.own_vote)
    send_vote(core)


def send_vote(core: Core) -> None:
    """Our vote to everybody who can commit with it."""
    if core.own_vote is None or core.ballot is None or core.own_vote.attempt != core.attempt:
        return
    observers = core.exchange.propose.observers if core.exchange is not None else ()
    for peer in sorted({*core.ballot.voters, *observers}):
        core.send(peer, core.own_vote)


def repeat_proposal(core: Core, peer: PeerId) -> None:
    """A peer says Ready in our attempt and shows no sign of what we take part in: the proposal was lost, or came while
    it caught up."""
    exchange, ballot = core.exchange, core.ballot
    is_ours = core.coordinator == core.me
    if exchange is not None and not exchange.has_sign_of(peer):
        # To a member, from the coordinator: take part. To anybody else, from any member: wait for what we do.
        if is_ours or peer not in exchange.members:
            core.send(peer, exchange.propose)
    elif exchange is None and ballot is not None and is_ours and core.state == states.VOTING:
        has_voted = ballot.attempt in core.votes.votes.get(peer, {})
        if peer in ballot.voters and not has_voted:
            core.send(peer, ProposeCommit(core.round, core.attempt, ballot.on_wire, ballot.voters))


def on_vote(core: Core, peer: PeerId, vote_message: Vote) -> None:
    """Keep a vote for this round if it is what it says it is. Raises ProtocolViolation."""
    if vote_message.round != core.round or core.state == states.CATCHING_UP:
        return
    signed = vote_message.vote
    if signed.peer != peer:
        raise ProtocolViolation(peer, "foreign_vote", f"sends a vote of {signed.peer}")
    if not core.site.keys.verify(signed, vote_text(core.site.run_id, Digest(vote_message.entry_hash))):
        raise ProtocolViolation(peer, "bad_signature", "vote is not signed by its peer")
    if not core.votes.add(vote_message):
        raise ProtocolViolation(peer, "double_vote", f"voted twice in attempt {vote_message.attempt}")
    if core.exchange is not None and vote_message.attempt == core.attempt:
        core.exchange.signs.add(peer)
