"""Two votes in one attempt: who sees them has evidence, the chain leaves their peer out, and nobody is accused for
nothing (R27)."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.chain import BARRED_ROUNDS, EVIDENCE_AGE_MAX, ChainView
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.double_votes import PROOFS_KEPT, VOTERS_KEPT, VOTES_KEPT, DoubleVotes, is_proved
from dilocoxd.machines.round.gathering import gathered_at, look
from dilocoxd.machines.round.grouping import evidence_problem, missing_majority
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.outcomes import CATCHING_UP, GATHERING, TakeUp, Waiting
from dilocoxd.machines.round.proposals import group_proposal, on_proposal, quorum_problem, take_up
from dilocoxd.machines.round.voting import on_accuse, on_vote
from dilocoxd.wire.entry import (
    Evidence,
    Signature,
    SignedEntry,
    SignedVote,
    VoteFor,
    entry_hash,
)
from dilocoxd.wire.messages import Accuse, Vote
from tests.unit.machines import round_world
from tests.unit.machines.round_world import (
    HASHES,
    HEAD,
    LIMITS,
    ME,
    SIGNED,
    START,
    B,
    C,
    D,
    against,
    contribution,
    entry_of,
    keys,
    offer,
    proposal,
    ready,
)

KEYS = keys()
NAMED = MappingProxyType({peer: PhaseId(-1) for peer in (ME, B, C, D)})
"""Whom the chain knows, without a phase that could be in it twice."""
ONE, OTHER = HASHES
FORGED = Signature(b"k", b"false")


def chain_at(height: int = 3) -> ChainView:
    return replace(round_world.chain_at(height), last_phases=NAMED)


def height_of(*others: PeerId, limits: RoundLimits = LIMITS) -> Height:
    height = round_world.height_of(*others, limits=limits)
    height.chain = chain_at()
    return height


def what(digest: Digest = ONE, round_index: int = 3, attempt: int = 0, parent: Digest = HEAD) -> VoteFor:
    return VoteFor(RoundIndex(round_index), Attempt(attempt), parent, digest)


def vote_of(peer: PeerId, attempt: int = 0, signature: Signature = SIGNED) -> SignedVote:
    return SignedVote(peer, Attempt(attempt), 7, signature)


def message(peer: PeerId, digest: Digest, round_index: int = 3, signature: Signature = SIGNED) -> Vote:
    return Vote(RoundIndex(round_index), HEAD, digest, vote_of(peer, signature=signature))


def left_out(peer: PeerId, last: int = 60) -> ChainView:
    return replace(chain_at(), barred={peer: RoundIndex(last)})


def at(chain: ChainView, *others: PeerId) -> Height:
    height = height_of(*others)
    height.chain = chain
    return height


# --- what is evidence


@pytest.mark.parametrize("digests", [(ONE, OTHER), (OTHER, ONE)])
def test_second_vote_in_an_attempt_is_evidence_whatever_comes_first(digests: tuple[Digest, Digest]) -> None:
    found, chain = DoubleVotes(), chain_at()
    assert not found.saw(chain, what(digests[0]), vote_of(B))
    assert found.saw(chain, what(digests[1]), vote_of(B))
    (evidence,) = found.take_untold()
    assert evidence == against(B) and is_proved(evidence, KEYS)
    assert found.take_untold() == () and found.pending(chain) == (evidence,)


@pytest.mark.parametrize(
    "other", [what(ONE), what(OTHER, attempt=1), what(OTHER, round_index=2), what(OTHER, parent=OTHER)]
)
def test_same_vote_or_one_of_another_attempt_round_or_parent_is_none(other: VoteFor) -> None:
    found, chain = DoubleVotes(), chain_at()
    found.saw(chain, what(ONE), vote_of(B))
    assert not found.saw(chain, other, vote_of(B, other.attempt)) and not found.untold


@pytest.mark.parametrize(
    "broken",
    [
        against(B, signed=b"false"),
        replace(against(B), first=against(B).second, second=against(B).first),
        replace(against(B), second=against(B).first),
        replace(against(B), second=replace(against(B).second, signature=b"false")),
        replace(against(B), public_key=b"another"),
    ],
)
def test_what_proves_nothing_is_held_against_nobody(broken: Evidence) -> None:
    height = height_of(B, C)
    found = on_accuse(height, C, Accuse(broken))
    assert found is not None and (found.peer, found.rule) == (C, "bad_evidence")
    assert not height.evidence()


def test_signatures_of_evidence_are_checked_once() -> None:
    asked: list[PeerId] = []

    def verify(peer: PeerId, signature: Signature, text: bytes) -> bool:
        asked.append(peer)
        return False

    found, doubtful = DoubleVotes(), replace(KEYS, verify=verify)
    for _ in range(3):
        assert not found.hear(against(B), chain_at(), doubtful)
    assert len(asked) == 1, "the first vote was false, and nothing is looked at again"


def test_votes_of_a_round_that_is_over_count_only_if_they_contradict() -> None:
    height = height_of(B, C)
    assert on_vote(height, B, message(B, ONE), GATHERING) is None
    height.chain = replace(height.chain, head=OTHER)  # and on
    assert on_vote(height, B, message(B, ONE), GATHERING) is None, "said again"
    assert on_vote(height, C, message(C, OTHER), GATHERING) is None, "nothing to compare with"
    forged = on_vote(height, B, message(B, OTHER, signature=FORGED), GATHERING)
    assert forged is not None and forged.rule == "bad_signature" and not height.evidence()
    found = on_vote(height, B, message(B, OTHER), CATCHING_UP)
    assert found is not None and found.rule == "double_vote"
    assert height.evidence() == (against(B),)


def test_vote_in_an_entry_that_recovery_brings_is_compared_with_the_one_that_was_heard() -> None:
    entry = entry_of(B, C)
    signed = SignedEntry(entry, (SIGNED, SIGNED), (vote_of(B), vote_of(C)))
    found, chain = DoubleVotes(), chain_at()
    found.saw(chain, what(OTHER), vote_of(B))
    found.saw(chain, what(entry_hash(entry)), vote_of(C))
    found.read(chain, [signed], KEYS)
    assert [one.peer for one in found.take_untold()] == [B]


def test_evidence_in_an_entry_is_told_to_the_operator_who_did_not_hear_it() -> None:
    signed = SignedEntry(replace(entry_of(C), evidence=(against(B),)), (SIGNED,), (vote_of(C),))
    found = DoubleVotes()
    found.read(left_out(B), [signed], KEYS)
    assert found.take_untold() == (against(B),) and found.pending(left_out(B)) == ()


# --- bounds


def test_memory_of_votes_and_proofs_is_bounded() -> None:
    found, chain = DoubleVotes(), replace(chain_at(), last_phases={B: 1})
    for number in range(VOTERS_KEPT + 10):
        found.saw(chain, what(), vote_of(PeerId(f"ghost{number}")))
    assert len(found.cast) == VOTERS_KEPT
    for attempt in range(VOTES_KEPT + 10):
        found.saw(chain, what(attempt=attempt), vote_of(B, attempt))
    assert len(found.cast) == VOTERS_KEPT + 1 and len(found.cast[B]) == VOTES_KEPT
    ghosts = [PeerId(f"ghost{number}") for number in range(PROOFS_KEPT + 10)]
    chain = replace(chain, last_phases=dict.fromkeys([B, *ghosts], PhaseId(0)))
    for ghost in ghosts:
        found.hear(against(ghost, 2), chain, KEYS)
    assert len(found.proofs) == PROOFS_KEPT
    found.hear(against(B, 3), chain, KEYS)
    assert B in found.proofs, "newer ones take the place of older ones"


def test_one_proof_against_a_peer_is_enough_until_it_is_over() -> None:
    found, chain = DoubleVotes(), chain_at()
    assert found.hear(against(B, 2), chain, KEYS) and found.hear(against(B, 3), chain, KEYS)
    assert len(found.take_untold()) == 1 and found.proofs[B].round == 2
    late = replace(chain, height=RoundIndex(3 + EVIDENCE_AGE_MAX))
    assert found.hear(against(B, 60), late, KEYS) and found.proofs[B].round == 60


@pytest.mark.parametrize("round_index", [5, 2**40])
def test_evidence_of_rounds_to_come_is_not_kept(round_index: int) -> None:
    found = DoubleVotes()
    assert found.hear(against(B, round_index), chain_at(), KEYS) and not found.proofs


def test_evidence_against_whom_no_entry_names_counts_for_nothing() -> None:
    """Keys cost nothing: whoever makes some up neither fills the chain nor alarms anybody."""
    found, stranger = DoubleVotes(), PeerId("stranger")
    assert found.hear(against(stranger), chain_at(), KEYS) and not found.proofs and not found.untold
    assert "no entry names" in evidence_problem([ME], [against(stranger)], chain_at())


# --- what the chain makes of it


def test_chain_leaves_out_for_a_while_who_an_entry_proves_to_have_voted_twice() -> None:
    chain = replace(chain_at(), recent=(frozenset([ME, B]),))
    after = chain.extended(replace(entry_of(ME), evidence=(against(B),)), OTHER)
    assert after.barred == {B: 3 + BARRED_ROUNDS}
    assert after.electorate(()) == {ME}
    rounds = 1
    while after.barred:
        following = replace(entry_of(ME), round=after.height, parent=after.head)
        after, rounds = after.extended(following, OTHER), rounds + 1
    assert rounds == BARRED_ROUNDS + 1
    assert after.height - 3 > EVIDENCE_AGE_MAX, "the same evidence cannot be brought again"


@pytest.mark.parametrize(
    ("peers", "evidence", "chain", "problem"),
    [
        ((ME, C), (against(B),), chain_at(), ""),
        ((ME, B), (against(B),), chain_at(), "pB, who voted twice"),
        ((ME, B), (), left_out(B), "pB, who voted twice"),
        ((B,), (), left_out(B), ""),
        ((ME,), (against(B),), left_out(B), "left out already"),
        ((ME,), (against(C), against(B)), chain_at(), "not sorted"),
        ((ME,), (against(B), against(B)), chain_at(), "not sorted"),
        ((ME,), (against(B, 4),), chain_at(), "does not count in round 3"),
        ((ME,), (against(B, 0),), replace(chain_at(), height=RoundIndex(EVIDENCE_AGE_MAX)), ""),
        ((ME,), (against(B, 0),), replace(chain_at(), height=RoundIndex(EVIDENCE_AGE_MAX + 1)), "does not count"),
    ],
)
def test_entry_names_nobody_who_is_left_out_beside_others(
    peers: tuple[PeerId, ...], evidence: tuple[Evidence, ...], chain: ChainView, problem: str
) -> None:
    found = evidence_problem(peers, evidence, chain)
    assert problem in found if problem else not found


def test_majority_does_not_count_who_is_accused_in_the_very_entry() -> None:
    limits = replace(LIMITS, has_majority_quorum=True)
    height = height_of(B, limits=limits)
    height.chain = replace(chain_at(), recent=(frozenset([ME, B]),))
    assert missing_majority({ME}, height.chain.recent_contributors)
    assert quorum_problem(height, frozenset([ME]), ()) and not quorum_problem(height, frozenset([ME]), (against(B),))


def test_majority_counts_all_where_all_recent_contributors_voted_twice() -> None:
    """R27.8: with nobody left to count, each half of a split network would go on alone."""
    barred = {ME: RoundIndex(60), B: RoundIndex(60), D: RoundIndex(60)}
    height = height_of(B, limits=replace(LIMITS, has_majority_quorum=True))
    height.chain = replace(chain_at(), recent=(frozenset([ME, B]),), barred=barred)
    assert quorum_problem(height, frozenset([ME]), ()) and not quorum_problem(height, frozenset([ME, B]), ())
    assert height.chain.left_out_by(()) == {D}, "it did not contribute recently"
    height.chain = replace(chain_at(), recent=(frozenset([ME, B]),), barred={ME: RoundIndex(60)})
    assert height.chain.electorate((against(B),)) == {ME, B} and height.chain.electorate(()) == {B}
    assert chain_at().electorate((against(B),)) == frozenset(), "no entries, no limit (R14.2)"


def test_newcomer_goes_on_with_those_who_voted_twice_where_nobody_else_counts() -> None:
    """Without them it has no majority, and beside it they could not go on alone: nobody would ever commit."""
    limits = replace(LIMITS, has_majority_quorum=True)
    height = height_of(B, limits=limits)
    height.chain = replace(left_out(B), recent=(frozenset([B]),))
    offer(height)
    height.say(B, ready(B), START)
    gathered = gathered_at(height)
    assert set(gathered.contributions) == {ME, B} and gathered.recent_contributors == {B}
    assert not evidence_problem([ME, B], (), height.chain)
    after = height.chain.extended(entry_of(ME, B), OTHER)
    assert after.electorate(()) == {ME} and after.left_out_by(()) == {B}


# --- groups and proposals


def offered(*others: PeerId, chain: ChainView | None = None) -> Height:
    """All have something to offer, and so have we."""
    height = at(chain if chain is not None else chain_at(), *others)
    offer(height)
    for peer in others:
        height.say(peer, ready(peer), START)
    return height


def test_proposal_holds_the_evidence_and_leaves_its_peer_out() -> None:
    height = offered(B, C)
    on_accuse(height, C, Accuse(against(B)))
    assert set(gathered_at(height).contributions) == {ME, C}
    made = group_proposal(height, tuple(contribution(peer) for peer in sorted((ME, C))), START)
    assert made.evidence == (against(B),) and B in made.observers


@pytest.mark.parametrize("chain", [left_out(B), left_out(ME)])
def test_who_is_left_out_is_neither_named_nor_waited_for(chain: ChainView) -> None:
    (gone,) = chain.barred
    gathered = gathered_at(offered(B, C, chain=chain))
    assert set(gathered.contributions) == {ME, B, C} - {gone}
    assert gone not in gathered_at(at(chain, B, C)).awaited


def test_standing_offer_of_who_is_left_out_starts_no_grace() -> None:
    height = at(left_out(B), B, C)
    height.say(B, ready(B), START)
    late = Monotonic(START + LIMITS.grace_max_s)
    offer(height, late)
    assert gathered_at(height).first_ready_at == late, "C has its grace from our contribution on"
    height = at(chain_at(), B, C)
    height.say(B, ready(B), START)
    offer(height, late)
    assert gathered_at(height).first_ready_at == START
    on_accuse(height, C, Accuse(against(B)))
    assert gathered_at(height).first_ready_at == late, "nor does it when the evidence comes later"


def test_grace_without_an_offer_that_counts_ends() -> None:
    height = at(left_out(B), B, C)
    height.say(B, ready(B), START)
    assert height.grace_since(frozenset([B])) == height.attempt.since == START


def test_those_left_out_go_on_where_nobody_else_trains() -> None:
    height = at(left_out(B), B)
    height.say(B, ready(B), START)
    assert set(gathered_at(height).contributions) == {B}, "we do not train"
    height.own.is_training = True
    assert not gathered_at(height).contributions


@pytest.mark.parametrize("keeps", ["trains", "offers too much", "does not join"])
def test_who_hangs_or_offers_nothing_that_counts_stops_nobody_for_ever(keeps: str) -> None:
    height = at(left_out(B), B, C)
    height.say(B, ready(B), START)
    said = ready(C, phase=-1) if keeps == "offers too much" else ready(C if keeps == "does not join" else None)
    height.say(C, said, START)
    if keeps == "does not join":
        height.attempt = type(height.attempt)(Attempt(1), START)
        height.say(B, ready(B, 1), START)
        height.say(ME, height.ready_message(), START)
    now = START
    found = look(height, round_world.process(), now)
    while not gathered_at(height).contributions:
        assert isinstance(found, Waiting) and found.until is not None and found.until > now, "else nobody looks again"
        now = found.until
        found = look(height, round_world.process(), now)
    assert set(gathered_at(height).contributions) == {B}
    assert now <= START + LIMITS.progress_timeout_s
    height.say(C, ready(C, height.attempt.index, phase=1), now)
    if keeps != "does not join":
        assert set(gathered_at(height).contributions) == {C}, "it offers something now"


def test_slow_trainer_has_its_time_from_when_it_is_due() -> None:
    height = at(left_out(B), B, C)
    height.say(B, ready(B), START)
    height.say(C, ready(), START)
    record = height.book.records[C].phases
    record.seen_at, record.seconds = START, 100.0
    found = look(height, round_world.process(), Monotonic(START + 99.0))
    assert isinstance(found, Waiting) and not gathered_at(height).contributions
    look(height, round_world.process(), Monotonic(START + 101.0 + LIMITS.grace_max_s))
    assert set(gathered_at(height).contributions) == {B}


def test_proposal_of_those_left_out_alone_is_not_taken_up_by_who_trains() -> None:
    height = at(left_out(B), B)
    height.keep(B, proposal(B, observers=(ME,)), START)
    height.own.is_training = True
    found = take_up(height, [B, ME], START)
    assert isinstance(found, Waiting) and not found.orders, "its coordinator may not know that we train: no strike"
    height.own.is_training = False
    assert isinstance(take_up(height, [B, ME], START), TakeUp)


def test_evidence_of_a_proposal_is_learned_and_what_proves_nothing_refuses_it() -> None:
    height = height_of(B, C, D)
    told = replace(proposal(C, observers=(ME,)), evidence=(against(B),))
    assert on_proposal(height, C, told, GATHERING, START) is None
    assert height.evidence() == (against(B),) and C in height.attempt.proposals
    false = replace(proposal(D, observers=(ME,)), evidence=(against(C, signed=b"false"),))
    found = on_proposal(height, D, false, GATHERING, START)
    assert found is not None and "bad_evidence" in str(found) and D not in height.attempt.proposals
