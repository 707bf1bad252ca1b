"""Votes for different entries in one attempt: somebody gave different bytes to different peers, or lies. Who?

Members show each other the hashes of the results they hold. Functions on `Core`. Source: protocol/06-rounds.md.
"""

from dataclasses import dataclass, field

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.rounds.attempts import fail_attempt
from dilocoxd.rounds.core import Core
from dilocoxd.rounds.exchange import Exchange
from dilocoxd.wire.messages import ResultHashes


@dataclass(slots=True)
class Dispute:
    """One attempt's open question."""

    since: Monotonic
    shown: dict[PeerId, tuple[bytes, ...]] = field(default_factory=dict)


def open_dispute(core: Core) -> None:
    """Show what we hold, once; observers hold it too but are not asked."""
    exchange = core.exchange
    if core.dispute is not None or exchange is None or exchange.result_hashes is None:
        return
    core.dispute = Dispute(core.now)
    for peer in exchange.group:
        core.send(peer, ResultHashes(core.round, core.attempt, exchange.result_hashes))


def on_result_hashes(core: Core, peer: PeerId, message: ResultHashes) -> None:
    """What a member of our attempt holds; shown before we know of a dispute, it opens one."""
    exchange = core.current_exchange(message.round, message.attempt)
    if exchange is None or peer not in exchange.by_peer or core.ballot is None:
        return
    open_dispute(core)
    if core.dispute is not None:
        core.dispute.shown[peer] = tuple(message.hashes)


def settle_dispute(core: Core, dissenting: tuple[PeerId, ...]) -> None:
    """Give up the attempt and name who is wrong, as soon as those who voted otherwise have shown their results."""
    open_dispute(core)
    dispute, exchange = core.dispute, core.exchange
    if dispute is None or exchange is None:
        fail_attempt(core, "votes for different entries without an exchange", dissenting)
        return
    silent = [peer for peer in dissenting if peer not in dispute.shown]
    if silent and not core.is_over(dispute.since + core.limits.vote_timeout_s / 2):
        core.waiting_for = f"the result hashes of {', '.join(silent[:3])}, who voted for another entry"
        return
    blamed = {culprit for peer in dissenting for culprit in _culprits(core.me, exchange, peer, dispute.shown.get(peer))}
    fail_attempt(core, f"votes for different entries; wrong by what we saw: {', '.join(sorted(blamed)[:3])}", blamed)


def _culprits(me: PeerId, exchange: Exchange, peer: PeerId, shown: tuple[bytes, ...] | None) -> set[PeerId]:
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
