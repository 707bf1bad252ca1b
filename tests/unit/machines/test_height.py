"""A height and its attempt: what lives as long as they do, what is taken over, and what is answered from it."""

from dataclasses import replace

from dilocoxd.ids import Attempt, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.peers.readiness import JUMPS_END
from dilocoxd.machines.peers.standing import SUSPICION_MAX
from dilocoxd.machines.round.attempt import PROPOSALS_MAX, RunningAttempt
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.joining import on_ready
from dilocoxd.machines.round.outcomes import GATHERING, Violation
from dilocoxd.machines.round.timers import Mark
from tests.unit.machines.round_world import (
    HEAD,
    LIMITS,
    ME,
    START,
    B,
    C,
    D,
    begin_exchange,
    chain_at,
    height_of,
    held_of,
    offer,
    proposal,
    ready,
    view,
    vote_for,
)


def next_height(height: Height) -> Height:
    chain = replace(chain_at(4), head=HEAD)
    return Height(height.terms, height.own, height.book, chain, Monotonic(200.0), height)


def test_nothing_that_was_said_at_a_height_is_left_at_the_next_one() -> None:
    height = height_of(B)
    offer(height)
    height.say(B, ready(B, attempt=2), START)
    height.words.claim(B, Attempt(2))
    height.words.gave_up(B, Attempt(1))
    height.votes.add(vote_for(B, held_of(ME, B)))
    height.accepts.add(B, Attempt(0), ME)
    height.lock = held_of(ME, B)
    height.attempt.note_left_out(B, START)
    later = next_height(height)
    assert later.words.readies() == {} and later.words.known_attempt(ME, Attempt(0)) == 0
    assert later.words.left(B) is None and not later.votes.votes and not later.accepts.accepted
    assert later.lock is None and not later.attempt.is_left_out and later.timers.first(Mark.CONTRIBUTION, set()) is None
    assert later.own.offer is height.own.offer, "our contribution is still offered"


def test_ready_of_the_next_height_is_kept_and_taken_out_there_once() -> None:
    height = height_of(B, C)
    soon, far = replace(ready(), round=RoundIndex(4)), replace(ready(), round=RoundIndex(5))
    height.buffered.update({B: soon, C: far})
    assert not height.arrived()
    later = next_height(height)
    assert later.arrived() == {B: soon} and not later.arrived()
    assert later.buffered == {C: far}


def test_early_word_of_a_height_that_was_passed_is_of_the_past() -> None:
    height = height_of(B)
    height.buffered[B] = ready()
    later = next_height(height)
    assert not later.arrived() and not later.buffered


def test_early_word_of_who_is_further_on_since_is_of_the_past() -> None:
    height = height_of(B)
    for height_of_b in (4, 6):
        on_ready(height, B, replace(ready(), round=RoundIndex(height_of_b), parent=bytes(32)), GATHERING, START)
    later = next_height(height)
    assert height.book.tips.claims[B].height == 6 and not later.arrived() and not later.buffered


def test_early_word_of_who_is_further_on_since_is_of_the_past_though_its_claims_are_ignored() -> None:
    """Schedule 1520246: a liar whose branch was not confirmed said Ready of the next height and of the one after."""
    height = height_of(B)
    height.book.records[B].tip.backoff_until = Monotonic(START + 100.0)
    for height_of_b in (4, 6, 4):  # the last one was overtaken
        on_ready(height, B, replace(ready(), round=RoundIndex(height_of_b), parent=bytes(32)), GATHERING, START)
    later = next_height(height)
    assert B not in height.book.tips.claims and not later.arrived() and not later.buffered


def test_early_word_counts_that_comes_long_after_the_claims_that_are_ignored() -> None:
    """Schedule 1802821: the lock of who had claimed other heights was not heard, and a new group proposed beside it."""
    height, since = height_of(B), Monotonic(START + LIMITS.behind_grace_s)
    height.book.records[B].tip.backoff_until = Monotonic(START + 100.0)
    height.book.see([replace(view(B), height=RoundIndex(1007))], height.chain, START)
    on_ready(height, B, replace(ready(), round=RoundIndex(4), parent=bytes(32)), GATHERING, since)
    height.book.see([replace(view(B), height=RoundIndex(1007))], height.chain, since)
    assert B in next_height(height).arrived()
    height.book.see([replace(view(B), height=RoundIndex(1008))], height.chain, since)
    on_ready(height, B, replace(ready(), round=RoundIndex(4), parent=bytes(32)), GATHERING, since)
    assert B not in next_height(height).arrived(), "a heartbeat that is new, and what it may have overtaken"


def test_claim_that_is_ignored_from_now_on_takes_back_what_was_said_before_it() -> None:
    height = height_of(B)
    on_ready(height, B, replace(ready(), round=RoundIndex(4), parent=bytes(32)), GATHERING, START)
    on_ready(height, B, replace(ready(), round=RoundIndex(6), parent=bytes(32)), GATHERING, START)
    height.book.tips.failed([B], [], START)
    assert B not in height.book.tips.claims and B not in next_height(height).arrived()


def test_crowd_of_strangers_keeps_no_peer_that_membership_knows_out_of_the_next_height() -> None:
    """Seed 907075: p4 proposed without p5, whose Ready had found no room among those of peers p4 did not know yet."""
    height = height_of(B, C)
    soon = replace(ready(), round=RoundIndex(4))
    crowd = [PeerId(f"x{index}") for index in range(8)]
    for peer in (*crowd, B, C):
        on_ready(height, peer, soon, GATHERING, START)
    assert height.buffered.keys() == {B, C, *crowd[:3]}


def test_owners_of_the_newest_round_with_an_exchange_are_remembered() -> None:
    height = height_of(B)
    height.owners = (ME, B)
    later = next_height(height)
    assert later.owners == () and later.owners_before == (ME, B)
    assert next_height(later).owners_before == (ME, B), "a round without an exchange forgets nothing"


def test_parties_are_voters_else_the_group_else_nobody() -> None:
    height = height_of(B, C)
    assert height.attempt.parties == frozenset()
    begin_exchange(height, ME, B, observers=(C,))
    assert height.attempt.parties == {ME, B}
    height.attempt.vote_on(held_of(ME), START)
    assert height.attempt.parties == {ME}
    assert RunningAttempt(Attempt(1), START).parties == frozenset(), "a new attempt knows nothing of it"


def test_an_observer_is_needed_until_it_has_accepted_our_proposal() -> None:
    height = height_of(B, C, D)
    begin_exchange(height, ME, B, observers=(C,))
    assert height.needs(B) and height.needs(C) and not height.needs(D)
    height.accepts.add(C, Attempt(0), B)
    assert height.needs(C), "it accepted another one"
    height = height_of(B, C)
    begin_exchange(height, ME, B, observers=(C,))
    height.accepts.add(C, Attempt(0), ME)
    assert not height.needs(C)


def test_who_stands_here_may_coordinate_whatever_its_heartbeat_says() -> None:
    height = height_of(B, C)
    height.book.see([view(B), view(C, height=2, head=chain_at(2).heads[0])], height.chain, START)
    assert set(height.candidates()) == {ME, B}
    height.say(C, ready(), START)
    assert set(height.candidates()) == {ME, B, C}


def test_attempt_far_beyond_all_others_is_not_believed_but_by_the_only_other_one() -> None:
    height = height_of(B, C)
    far = Attempt(LIMITS.attempt_jump_max + 1)
    found = height.hear_attempt(B, far)
    assert isinstance(found, Violation) and found.rule == "attempt_jump"
    assert height.hear_attempt(C, far) is None, "a second peer claims one as far"
    assert height_of(B).hear_attempt(B, far) is None


def test_attempt_that_no_round_comes_to_is_believed_by_nobody_whoever_says_so() -> None:
    last, beyond = JUMPS_END, Attempt(JUMPS_END + 1)
    for height, peers in ((height_of(B), (B, B)), (height_of(B, C), (B, C))):
        for peer in peers:
            found = height.hear_attempt(peer, beyond)
            assert isinstance(found, Violation) and found.rule == "attempt_jump"
        assert height.hear_attempt(peers[1], last) is None, "it can be reached, and half of all attempts are left"
    height = height_of(B, C)
    height.attempt = RunningAttempt(beyond, START)
    assert height.hear_attempt(B, Attempt(beyond + LIMITS.attempt_jump_max)) is None, "who is near is"


def test_far_attempt_of_who_may_make_a_majority_is_believed() -> None:
    """A liar that was alone with it for a moment may have led it there."""
    majority = replace(LIMITS, has_majority_quorum=True)
    for recent, limits, is_believed in (
        ({ME, B}, majority, True),
        ({ME, C}, majority, False),
        ({ME, B}, LIMITS, False),
    ):
        height = height_of(B, C, limits=limits)
        height.chain = replace(height.chain, recent=(frozenset(recent),))
        far = Attempt(LIMITS.attempt_jump_max + 1)
        assert (height.hear_attempt(B, far) is None) is is_believed
        assert height.hear_attempt(B, Attempt(JUMPS_END + 1)) is not None
    height = height_of(B, C)
    height.lock = held_of(ME, B)
    assert height.hear_attempt(B, Attempt(LIMITS.attempt_jump_max + 1)) is None, "our lock waits for it"


def test_company_of_who_is_not_followed_is_none() -> None:
    """One says first what the other then follows: each of the two raises attempts alone."""
    height = height_of(B, C, D)
    for number in range(1, 2 * SUSPICION_MAX + 4):
        for peer in (B, C):
            height.hear_attempt(peer, Attempt(number))
            height.say(peer, ready(attempt=number), START)
    assert height.suspected() == {B, C}
    height = height_of(B, C, D)
    for number in range(1, SUSPICION_MAX + 2):
        assert isinstance(height.hear_attempt(B, Attempt(number + 1000)), Violation)
        height.hear_attempt(C, Attempt(number))
        height.say(C, ready(attempt=number), START)
    assert C in height.suspected(), "what nobody believes is no company either"


def test_proposal_without_us_says_that_a_round_goes_on_outside() -> None:
    height = height_of(B, C)
    height.keep(B, proposal(B, C), START)
    assert height.attempt.is_left_out and height.attempt.left_out_by == {B} and not height.attempt.proposals
    height.keep(C, proposal(ME, C), START)
    assert list(height.attempt.proposals) == [C]


def test_proposals_of_ids_without_end_push_out_none_of_who_is_there() -> None:
    height = height_of(B, C)
    height.keep(C, proposal(ME, C), START)
    for number in range(3 * PROPOSALS_MAX):
        height.keep(PeerId(f"fresh{number}"), proposal(ME, B), START)
        assert len(height.attempt.proposals) <= PROPOSALS_MAX
    height.keep(B, proposal(ME, B), START)
    assert {B, C} <= height.attempt.proposals.keys()


def test_standing_still_moves_every_moment_of_height_and_attempt() -> None:
    height = height_of(B)
    offer(height)
    height.keep(B, proposal(ME, B), START)
    begin_exchange(height, ME, B)
    height.stood_still(60.0)
    moments = (
        height.timers.first(Mark.CONTRIBUTION, set()),
        height.attempt.since,
        height.attempt.timers.since(Mark.PROGRESS),
    )
    assert (*moments, height.attempt.timers.since(Mark.PROPOSAL, B)) == (START + 60.0,) * 4


def test_peer_behind_gets_our_vote_of_its_round_and_where_we_stand() -> None:
    height = height_of(B)
    height.own.vote = vote_for(ME, held_of(ME, B))
    told = [send.message for send in height.help_for(B, RoundIndex(3))]
    assert told[0] is height.own.vote and len(told) == 2
    assert len(height.help_for(B, RoundIndex(1))) == 1, "a vote of another round would not help"
