"""How attempts and rounds begin and end: what is promised, said and ordered, and in which order (R1 to R3, R16)."""

from dataclasses import replace

from dilocoxd.ids import Attempt, Digest, Monotonic, PhaseId, RoundIndex
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass
from dilocoxd.machines.round.inputs import EntryApplied, PhaseOffered, RecoveryFailed, RecoveryFinished
from dilocoxd.machines.round.life import RoundLife
from dilocoxd.machines.round.outcomes import Commit, GiveUp, Join, Recover, TakeUp, VoteOn
from dilocoxd.machines.round.outputs import (
    AbandonContribution,
    ApplyEntry,
    AttemptFailed,
    Broadcast,
    DoubleVoteFound,
    KeptPromise,
    PersistEntry,
    PersistPromise,
    RoundFinished,
    Send,
    Settlement,
    StartRecovery,
)
from dilocoxd.machines.round.timers import LAG_S
from dilocoxd.machines.round.voting import promise_of
from dilocoxd.wire.messages import Accuse, Ready
from tests.unit.machines.round_world import (
    HASHES,
    ME,
    SIGNED,
    START,
    B,
    C,
    against,
    chain_at,
    contribution,
    held_of,
    proposal,
    terms,
    view,
)

BITS_AFTER = Digest(b"n" * 32)
APPLIED = EntryApplied(RoundIndex(3), BITS_AFTER)


def life(*, kept: KeptPromise | None = None) -> RoundLife:
    """Started at height 3, with B live and our contribution offered."""
    found = RoundLife(terms(), chain_at())
    found.advance(START, None)
    found.start(kept)
    found.book.see([view(B)], found.height.chain, START)
    found.offer(PhaseOffered(contribution(ME), HASHES, SIGNED), is_told=True)
    found.advance(START, None)
    return found


def kinds(found: RoundLife) -> list[type]:
    return [type(command) for command in found.out]


def test_a_later_attempt_is_on_disk_before_it_is_said() -> None:
    found = life()
    found.join(Join(Attempt(2), (B, proposal(ME, B, attempt=2))))
    assert kinds(found) == [CancelTransfers, PersistPromise, Broadcast]
    assert found.height.attempt.index == 2 and list(found.height.attempt.proposals) == [B]


def test_attempt_that_failed_is_told_with_the_blamed_unless_others_gave_it_up() -> None:
    found = life()
    found.give_up(GiveUp("stalls", (B, ME)))
    told = found.out[1]
    assert kinds(found)[:2] == [AttemptFailed, Broadcast]
    assert isinstance(told, Broadcast) and told.message.blames == (B,)  # type: ignore[union-attr]
    assert found.book.conflicts.pairs(RoundIndex(3)) == {(ME, B)}
    found.advance(START, None)
    found.give_up(GiveUp("B gave up", is_told=False))
    assert kinds(found) == [AttemptFailed, CancelTransfers, PersistPromise, Broadcast]


def test_vote_goes_out_behind_its_lock_and_an_observer_votes_nothing() -> None:
    found = life()
    found.vote(VoteOn(held_of(ME, B)))
    assert kinds(found) == [PersistPromise, Send]
    assert found.height.lock is not None and found.own.voted_phase == 0
    observer = life()
    observer.vote(VoteOn(held_of(B)))
    assert not observer.out and observer.height.lock is None


def test_entry_is_persisted_then_settled_then_applied_then_the_next_round_begins() -> None:
    found = life()
    held = held_of(ME, B)
    found.vote(VoteOn(held))
    found.advance(START, None)
    found.commit(Commit(held, ()))
    assert kinds(found) == [PersistEntry]
    found.advance(START, None)
    found.apply()
    assert kinds(found) == [Broadcast, ApplyEntry] and found.own.offer is None
    assert [one.settle for one in found.out if isinstance(one, ApplyEntry)] == [Settlement(PhaseId(0), ())]
    found.advance(START, None)
    found.finish(APPLIED)
    assert kinds(found) == [RoundFinished, Broadcast]
    assert found.height.round == 4 and found.height.lock is None and found.height.chain.state_digest == BITS_AFTER


def test_x8_observers_go_on_to_get_results_until_the_next_exchange_needs_the_buffers() -> None:
    found, held = life(), held_of(ME, B)
    found.vote(VoteOn(held))
    said = []
    for step in (lambda: found.commit(Commit(held, ())), found.apply, lambda: found.finish(APPLIED)):
        found.advance(START, None)
        step()
        said += kinds(found)
    assert CancelTransfers not in said and RoundFinished in said
    found.advance(START, None)
    found.take_up(TakeUp(B, replace(proposal(B, C, observers=(ME,)), round=RoundIndex(4))))
    assert found.out[0] == CancelTransfers(RoundIndex(4), Attempt(0))


def test_contribution_that_no_entry_can_name_any_more_is_settled_at_the_new_tip() -> None:
    found = life()
    found.own.voted_phase = PhaseId(0)
    chain = chain_at(4)
    found.arrive(replace(chain, last_phases={ME: PhaseId(0)}))
    assert AbandonContribution(PhaseId(0), is_voted=True) in found.out
    assert "not offered any more" in found.height.failures[0]


def test_contribution_that_has_read_other_samples_than_the_new_branch_would_take_does_not_stay_offered() -> None:
    found = life()
    found.own.voted_phase = PhaseId(0)
    found.recover(Recover("a fork"), is_gathering=True)
    found.advance(START, None)
    found.resume(RecoveryFinished(replace(chain_at(4), head=Digest(b"o" * 32)), None, misread=PhaseId(0)))
    assert AbandonContribution(PhaseId(0), is_voted=True) in found.out and found.own.offer is None
    found.advance(START, None)
    found.offer(PhaseOffered(contribution(ME, phase=1), HASHES, SIGNED, is_misread=True), is_told=True)
    assert found.out == [AbandonContribution(PhaseId(1), is_voted=False)] and found.own.offer is None


def test_contribution_that_a_recovery_in_vain_has_settled_is_offered_no_more() -> None:
    """L15.4. The next phase may come."""
    found = life()
    assert found.own.offer is not None
    phase = found.own.offer.contribution.phase
    found.recover(Recover("a fork"), is_gathering=True)
    found.advance(START, None)
    found.resume(RecoveryFailed("its branch has an end that nobody gives", settled_phase=phase))
    assert found.own.offer is None
    found.offer(PhaseOffered(contribution(ME, phase=phase + 1), HASHES, SIGNED), is_told=True)
    assert found.own.offer is not None


def test_contribution_that_fits_the_new_branch_stays_offered() -> None:
    found = life()
    found.recover(Recover("a fork"), is_gathering=True)
    found.resume(RecoveryFinished(replace(chain_at(4), head=Digest(b"o" * 32)), None))
    assert found.own.offer is not None and AbandonContribution not in kinds(found)


def test_restarted_peer_starts_behind_the_attempt_that_it_promised_with_its_lock() -> None:
    before = life()
    before.vote(VoteOn(held_of(ME, B)))
    found = life(kept=KeptPromise(promise_of(before.height), results_held=True))
    assert found.height.attempt.index == 1 and found.height.lock is not None and found.height.lock.results_held


def test_recovery_that_changes_nothing_leads_back_to_an_attempt_in_which_nothing_was_accepted() -> None:
    found = life()
    found.advance(Monotonic(START + 5.0), None)
    assert found.recover(Recover("somebody is ahead"), is_gathering=True) == 1
    assert kinds(found) == [Broadcast, StartRecovery]
    found.advance(Monotonic(START + 9.0), None)
    found.resume(RecoveryFailed("no answer"))
    assert found.height.attempt.index == 0 and found.height.attempt.since == START + 4.0, "what was waited counts"
    found.recover(Recover("again"), is_gathering=False)
    found.resume(RecoveryFailed("no answer"))
    assert found.height.attempt.index == 1, "we were at work in it"


def test_lag_moves_all_moments_and_leaves_time_to_read_what_came() -> None:
    found = life()
    since = found.height.attempt.since
    found.advance(Monotonic(START + 0.5), Monotonic(START + 0.4))
    assert found.height.attempt.since == since, "a little late is no lag"
    found.advance(Monotonic(START + 60.0), Monotonic(START + 1.0))
    assert found.height.attempt.since == since + 59.0 + LAG_S


def test_orders_to_the_worker_are_remembered_until_they_are_answered_once() -> None:
    found = life()
    found.emit(OrderPass(RoundIndex(3), Attempt(0), 1, 0))
    assert len(found.own.orders) == 1


def test_who_stood_ahead_of_a_recovery_stands_where_it_ends() -> None:
    """R6.5: what B said while we caught up counts when we are there (seed 907075)."""
    found = life()
    head = Digest(b"a" * 32)
    found.book.tips.hear(found.height.chain, B, RoundIndex(4), head, START)
    found.recover(Recover("B is ahead"), is_gathering=True)
    chain = replace(chain_at(4), head=head, heads=(*chain_at(3).heads, head))
    found.resume(RecoveryFinished(chain, None))
    assert found.height.round == 4 and found.book.records[B].tip.is_at_our_head
    assert B in found.height.candidates()


def test_evidence_is_told_once_and_again_at_each_height_until_the_chain_holds_it() -> None:
    """R27.2."""
    found, named = life(), {B: PhaseId(0)}
    found.book.double_votes.hear(against(B), replace(chain_at(), last_phases=named), found.terms.site.keys)
    accuse = Broadcast(Accuse(against(B)))
    found.accuse()
    found.accuse()
    assert found.out == [DoubleVoteFound(against(B)), accuse]
    found.advance(START, None)
    found.arrive(replace(chain_at(4), last_phases=named))
    assert accuse in found.out
    found.advance(START, None)
    found.arrive(replace(chain_at(5), last_phases=named, barred={B: RoundIndex(68)}))
    assert accuse not in found.out


def test_evidence_that_the_chain_holds_is_told_to_the_operator_alone() -> None:
    found = life()
    found.height.chain = replace(found.height.chain, last_phases={B: PhaseId(0)}, barred={B: RoundIndex(60)})
    found.book.double_votes.hear(against(B), found.height.chain, found.terms.site.keys)
    found.accuse()
    assert found.out == [DoubleVoteFound(against(B))]


def test_who_comes_back_to_a_head_goes_on_behind_what_it_promised_there() -> None:
    """R2.4: after another branch, and after a start whose log is not that of the promise."""
    found = life()
    tip = found.height.chain
    found.vote(VoteOn(held_of(ME, B)))
    found.arrive(replace(tip, head=Digest(b"o" * 32)))
    assert found.height.attempt.index == 0
    found.arrive(tip)
    assert found.height.attempt.index == 1
    kept = found.height.lock
    assert kept is not None and kept.entry_hash == held_of(ME, B).entry_hash and not kept.results_held
    (said,) = [one.message for one in found.out[-1:] if isinstance(one, Broadcast)]
    assert isinstance(said, Ready) and said.lock == kept.on_wire, "else it would prove that nobody committed (R13.1)"
    lost = RoundLife(terms(), replace(tip, height=RoundIndex(0), head=Digest(b"g" * 32)))
    lost.start(KeptPromise(replace(promise_of(found.height), attempt=Attempt(4)), results_held=False))
    assert lost.height.attempt.index == 0
    lost.arrive(tip)
    assert lost.height.attempt.index == 5
    assert lost.height.lock is not None and lost.height.lock.entry == kept.entry
