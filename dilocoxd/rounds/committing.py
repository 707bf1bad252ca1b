"""From a running exchange to the applied entry: time-outs, forming the entry, counting, persist, apply. On `Core`.

Source: protocol/06-rounds.md; docs/internals.md 3.4-3.7.
"""

from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.rounds import core as states
from dilocoxd.rounds.attempts import fail_attempt
from dilocoxd.rounds.ballots import vote
from dilocoxd.rounds.commands import ApplyEntry, InFlight, PersistEntry, SettleContribution, StartRecovery
from dilocoxd.rounds.core import Core
from dilocoxd.rounds.disputes import settle_dispute
from dilocoxd.rounds.exchange import Exchange
from dilocoxd.rounds.votes import HeldLock
from dilocoxd.wire.entry import Entry, SignedEntry, SignedVote, entry_hash
from dilocoxd.wire.messages import Abandon, Committed


def advance_exchange(core: Core) -> None:
    """Watch the running exchange; when all results are here, form the entry and vote."""
    exchange = core.exchange
    assert exchange is not None, "exchanging without an exchange"
    hashes = exchange.result_hashes
    if hashes is not None and exchange.is_contributor and core.drift.pressing():
        # Somebody has committed this round without our vote: what we would vote for can only become a fork.
        core.waiting_for = "recovery: others have decided this round without us"
        return
    if hashes is not None and not exchange.is_checked:
        # What does not decode must not be voted for: its entry could be committed, but applied by nobody. Nor committed
        # by an observer: all voters may be liars.
        core.emit(*exchange.check_results())
        core.waiting_for = "the outer worker, which checks the results"
        return
    if hashes is not None:
        _form(core, exchange, hashes)
        return
    lost = sorted(peer for peer in exchange.group if not core.is_live(peer))
    if lost:
        fail_attempt(core, f"lost {', '.join(lost[:3])}")
        return
    core.emit(*exchange.retry(core.now))
    if (retry_at := exchange.next_retry()) is not None:
        core.is_over(retry_at)
    owing = exchange.owed_by()
    if _is_left_behind(core, exchange):
        fail_attempt(core, f"{', '.join(sorted(owing)[:3])} went on and sends no results", owing)
        return
    # Whoever lacks an input gives up first and can name the culprit; who only lacks results waits half as long again.
    waits_for_input = any(owner == core.me for owner in exchange.owners) and not exchange.has_all_inputs()
    limit = core.limits.progress_timeout_s * (1.0 if waits_for_input else 1.5)
    if core.is_over(exchange.progress_at + limit) and not core.outstanding:
        names = ", ".join(sorted(owing)[:3]) or "its own transfers"
        fail_attempt(core, f"no progress for {limit:g} s, waited for {names}", owing)
        return
    core.waiting_for = f"segments of {', '.join(sorted(owing)[:3])}" if owing else "the outer worker"


def _is_left_behind(core: Core, exchange: Exchange) -> bool:
    """All contributors say that they are beyond this round, and what we observe has stopped: nothing more will come.

    If we believe them, recovery starts just as soon (look_at_drift); if not, others may need us in another attempt."""
    if exchange.is_contributor or any(core.views[p].height <= core.round for p in exchange.group if p in core.views):
        return False
    return core.is_over(exchange.progress_at + core.limits.progress_timeout_s / 4) and not core.outstanding


def _form(core: Core, exchange: Exchange, hashes: tuple[Digest, ...]) -> None:
    propose = exchange.propose
    entry = Entry(
        run_id=core.site.run_id,
        round=core.round,
        parent=core.chain.head,
        state_digest=core.chain.state_digest,
        contributions=propose.contributions,
        result_hashes=hashes,
        lowrank_r=propose.lowrank_r,
        next_lowrank_r=propose.next_lowrank_r,
        next_inner_steps=propose.next_inner_steps,
    )
    core.times.exchanged_at = core.now
    core.owned = exchange.owned_reductions
    held = HeldLock(
        attempt=core.attempt,
        entry=entry,
        entry_hash=entry_hash(entry),
        voters=exchange.group,
        results_held=True,
        coordinator=core.coordinator,
        witnesses=tuple(propose.observers),
    )
    vote(core, held)


def advance_voting(core: Core) -> None:
    """Commit when every voter has voted for our entry; give up when one cannot or does not."""
    ballot = core.ballot
    assert ballot is not None, "voting without a ballot"
    if try_commit(core, ballot):
        return
    if core.exchange is not None:
        core.emit(*core.exchange.retry(core.now))
        if (retry_at := core.exchange.next_retry()) is not None:
            core.is_over(retry_at)
    tally = core.votes.tally(ballot.attempt, ballot.entry_hash, ballot.voters)
    if tally.dissenting:
        settle_dispute(core, tally.dissenting)
        return
    lost = [peer for peer in ballot.voters if not core.is_live(peer)]
    if lost:
        fail_attempt(core, f"lost {', '.join(lost[:3])} before it voted")
        return
    if rivals := _rivals(core, ballot):
        for peer in rivals:
            core.gathering.gave_up(peer, ballot.attempt)
        fail_attempt(core, f"{', '.join(rivals[:3])} take part in another group of this attempt")
        return
    if core.is_over(core.voting_since + core.limits.vote_timeout_s):
        if tally.votes is not None:
            # Everybody agrees; only observers that live, but do not answer, are missing. They may not stop a round.
            core.mute.update(core.accepts.missing(ballot))
            try_commit(core, ballot)
            return
        fail_attempt(core, f"no vote of {', '.join(tally.missing[:3])}", tally.missing)
        return
    absent = tally.missing or core.accepts.missing(ballot)
    core.waiting_for = f"the {'votes' if tally.missing else 'acceptance'} of {', '.join(absent[:3])}"


def _rivals(core: Core, ballot: HeldLock) -> list[PeerId]:
    """Witnesses that are not silent, but busy: they accepted another proposal of this attempt, or vote in it.

    Their group may commit, so ours must not. Who does that again and again is a liar and counts as silent."""
    busy = {
        peer
        for peer in ballot.witnesses
        if core.accepts.accepted.get(peer, {}).get(ballot.attempt, ballot.coordinator) != ballot.coordinator
        or ballot.attempt in core.votes.votes.get(peer, {})
    }
    return sorted(peer for peer in busy if core.is_live(peer) and not core.gathering.is_left_out(peer))


def try_commit(core: Core, held: HeldLock) -> bool:
    """Commit `held` if all its voters voted for it in its attempt. Also for a lock of an attempt given up since."""
    tally = core.votes.tally(held.attempt, held.entry_hash, held.voters)
    silent = [p for p in core.accepts.missing(held) if core.is_live(p) and p not in core.mute and p != core.me]
    if tally.votes is None or silent:
        return False
    if not held.results_held:
        why = "an entry is decided, but only others have its payload"
        if core.is_over(core.drift.retry_at):
            start_recovery(core, why, is_rebuild=False)
        else:
            core.waiting_for = f"another try: {why}"
        return True
    _commit(core, held, tally.votes)
    return True


def _commit(core: Core, held: HeldLock, votes: tuple[SignedVote, ...]) -> None:
    core.ballot = held
    core.state = states.COMMITTING
    core.times.voted_at = core.now
    core.waiting_for = f"the log, which stores entry {core.round}"
    core.emit(PersistEntry(SignedEntry(held.entry, votes, time=0)))


def on_persisted(core: Core) -> None:
    """The entry cannot be lost any more: settle, apply, tell everybody."""
    ballot = core.ballot
    assert ballot is not None, "persisted an entry that nobody committed"
    core.state = states.APPLYING
    core.times.persisted_at = core.now
    core.waiting_for = f"the outer worker, which applies entry {core.round}"
    core.broadcast(Committed(core.round, ballot.entry_hash))
    offer = core.offer
    if offer is not None and offer.contribution in ballot.entry.contributions:
        core.emit(SettleContribution(offer.contribution.phase, core.round, True, core.owned))
        core.offer = None
    core.emit(ApplyEntry(core.round, ballot.entry.lowrank_r))


def start_recovery(core: Core, reason: str, *, is_rebuild: bool) -> None:
    """Stop taking part until recovery has compared our chain with those of others."""
    # Nobody shall propose us, or wait for what we owe, meanwhile.
    core.broadcast(Abandon(core.round, core.attempt, f"catching up: {reason}"[:500], ()))
    is_uninvolved = core.state == states.GATHERING and core.promised_to is None
    core.uninvolved_for = core.now - core.attempt_started_at if is_uninvolved else None
    core.asked = dict(core.drift.claims)
    peers = tuple(sorted(core.asked)) or tuple(sorted(core.live() - {core.me}))
    height = max((claim.height for claim in core.asked.values()), default=core.round)
    lock = core.lock if core.lock is not None and core.lock.results_held else None
    in_flight = None
    if core.offer is not None:
        in_flight = InFlight(core.offer.contribution, lock.entry if lock is not None else None, core.owned)
    core.exchange = None
    core.ballot = None
    core.state = states.CATCHING_UP
    core.waiting_for = f"recovery from {len(peers)} peers: {reason}"
    core.emit(StartRecovery(peers, height, reason, is_rebuild, in_flight))


def look_at_drift(core: Core) -> None:
    """Start recovery when somebody is ahead or on another branch for long enough, or our bits are wrong."""
    if core.drift.wrong_bits(core.chain):
        core.drift.rebuilt_head = core.chain.head
        start_recovery(core, "peers at the same head hold other bits", is_rebuild=True)
        return
    if (due_at := core.drift.next_due()) is None or not core.is_over(due_at):
        return
    if core.state != states.GATHERING and not core.drift.pressing():
        return
    # The others have finished, and what they decided is on its way to us: asking for it again would take longer.
    exchange = core.exchange
    is_arriving = exchange is not None and core.state == states.EXCHANGING and not exchange.is_contributor
    if exchange and is_arriving and not core.is_over(exchange.progress_at + core.limits.progress_timeout_s / 4):
        return
    claims = core.drift.due(Monotonic(core.now))
    if claims:
        kinds = sorted({claim.kind for claim in claims.values()})
        best = max(claim.height for claim in claims.values())
        start_recovery(core, f"{len(claims)} peers are {' or '.join(kinds)}, up to height {best}", is_rebuild=False)
