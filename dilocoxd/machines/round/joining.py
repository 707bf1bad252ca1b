"""Where others stand, as they say: elsewhere (then we compare chains), or here, in which attempt.

A later attempt is joined, one that a needed peer left is given up. Source: protocol/06-rounds.md, R5, R12, R15, R17,
R19, R23.
"""

from collections.abc import Set

from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.peers.tips import BEHIND, SAME
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.outcomes import (
    AT_WORK,
    EXCHANGING,
    GATHERING,
    LISTENING,
    GiveUp,
    Join,
    Outcome,
    Recover,
    Told,
    Violation,
    Waiting,
)
from dilocoxd.machines.round.outputs import Send
from dilocoxd.machines.round.proposals import repeated
from dilocoxd.machines.round.timers import LEFT_BEHIND
from dilocoxd.wire.messages import Abandon, Ready


def look_at_tips(height: Height, state: str, now: Monotonic) -> Recover | Waiting:
    """Recover when somebody is ahead or on another branch for long enough, or our bits are wrong; else when to look."""
    tips, attempt = height.book.tips, height.attempt
    if tips.has_wrong_bits(height.chain):
        return Recover("peers at the same head hold other bits", is_rebuild=True)
    due_at = tips.next_due()
    if due_at is None or now < due_at:
        return Waiting("claims that are old enough", due_at)
    if state != GATHERING and not tips.pressing():
        return Waiting("the end of this attempt")
    if state == EXCHANGING and attempt.exchange is not None and not attempt.exchange.is_contributor:
        # The others have finished, and what they decided is on its way to us: asking for it again would take longer.
        end = attempt.timers.end(LEFT_BEHIND, height.limits)
        if now < end:
            return Waiting("results that are on their way", end)
    claims = tips.due(now)
    if not claims:
        return Waiting("claims that are old enough")
    kinds = sorted({claim.kind for claim in claims.values()})
    best = max(claim.height for claim in claims.values())
    who = "1 peer is" if len(claims) == 1 else f"{len(claims)} peers are"
    return Recover(f"{who} {' or '.join(kinds)}, up to height {best}")


def on_ready(height: Height, peer: PeerId, ready: Ready, state: str, now: Monotonic) -> Outcome | None:
    """A peer says where it stands (R1); at our tip also in which attempt it is, and what it brings."""
    book, words = height.book, height.words
    book.goodbye(peer, has_departed=False)  # wherever it stands, it is back
    kind = book.tips.hear(height.chain, peer, ready.round, Digest(ready.parent), now)
    if ready.round == height.round + 1:
        _buffer(height.buffered, book.views().keys(), peer, ready)
    if kind == SAME:
        return _on_ready_here(height, peer, ready, state, now)
    words.stands_elsewhere(peer)
    is_dead = Digest(ready.parent) in book.reverts.dead
    if kind != BEHIND or is_dead:
        book.joined(peer)  # it answers, and will be waited for where we meet (R6)
    if is_dead:  # it has not heard that an entry of its chain was taken back (R29)
        return Told(tuple([Send(peer, message) for message in book.reverts.recent(height.chain)]))
    if kind == BEHIND and book.tips.has_fallen_back(peer, now):
        book.fell_back(peer, ready.round, Digest(ready.parent))
        height.forget_buffered({peer})  # said before it lost that
    # To a peer that is still at an older round: our vote of it, and where we stand (R15).
    return Told(height.help_for(peer, ready.round)) if ready.round < height.round else None


def _buffer(buffered: dict[PeerId, Ready], known: Set[PeerId], peer: PeerId, ready: Ready) -> None:
    """Keep what is said of the next height. Whom membership knows always has room, whoever else says so too."""
    if peer in known or peer in buffered or len(buffered.keys() - known) <= len(known):
        buffered[peer] = ready


def _on_ready_here(height: Height, peer: PeerId, ready: Ready, state: str, now: Monotonic) -> Outcome | None:
    """A later attempt is joined, unless we run one without this peer (R5)."""
    book, words, own = height.book, height.words, height.attempt.index
    book.tips.holds_bits(peer, Digest(ready.state_digest))
    if ready.state_digest != height.chain.state_digest:
        return Violation(peer, "digest_mismatch", f"holds other bits than we do at height {height.round}")
    if ready.attempt >= own:
        book.joined(peer)
    if state not in LISTENING:
        return None
    if (violation := height.hear_attempt(peer, ready.attempt)) is not None:
        return violation
    if ready.contribution is not None and ready.contribution.peer != peer:
        return Violation(peer, "foreign_contribution", f"offers a contribution of {ready.contribution.peer}")
    height.say(peer, ready, now)
    is_ahead = ready.attempt > own and book.is_witness(peer, now)  # a party may be one of whom membership says nothing
    if is_ahead and state == GATHERING:
        latest = height.latest_attempt(own)
        return Join(latest) if latest > own else None
    if is_ahead and height.needs(peer):
        words.gave_up(peer, own)
        blames = height.attempt.withheld_with(peer, height.limits, now)
        return GiveUp(f"{peer} went on to attempt {ready.attempt}", blames, is_told=False)
    return None if is_ahead else repeated(height, peer)


def on_abandon(height: Height, peer: PeerId, abandon: Abandon, state: str) -> GiveUp | Violation | None:
    """A member gave up our attempt: so do we. Complaints are remembered whoever makes them (R12), but not those of an
    attempt that nobody can have been in (R5.2)."""
    if abandon.round != height.round:
        return None
    own, jump_max = height.attempt.index, height.limits.attempt_jump_max
    is_alone = height.book.is_alone_with(peer)
    if problem := height.words.jump_problem(peer, abandon.attempt, own, jump_max, is_alone=is_alone):
        return Violation(peer, "attempt_jump", problem)
    # Names of nobody would fill the table, and nobody else's complaints would count.
    known = {height.me, *height.book.views()}
    blamed = sorted(known.intersection(abandon.blames))
    height.book.conflicts.blame(peer, blamed, height.round, abandon.attempt)
    height.words.gave_up(peer, abandon.attempt)
    is_ours = abandon.attempt == own and peer in height.attempt.parties
    if is_ours and state in AT_WORK:
        return GiveUp(f"{peer} gave up: {abandon.reason}", is_told=False)
    return None
