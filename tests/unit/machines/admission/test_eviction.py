"""Members evict one of them: who counts, how many are needed, what a fork undoes (protocol M7)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import Authorities, admit, certified, revoked
from dilocoxd.machines.admission.eviction import VOTE_ENTRIES, WINDOW_ENTRIES, height_to_vote_at, tally
from dilocoxd.machines.admission.gate import AdmissionBook, Review
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.machines.admission.vote_book import RENEW_ENTRIES, UNDECIDED_MAX, VOTES_OF_ONE_MAX, WAITING_MAX
from dilocoxd.wire.admission import InviteTerms, MembershipProof, MemberVote, Revocation, RevocationTerms
from dilocoxd.wire.entry import Signature
from tests.unit.machines.admission.chains import Chain

NOW = 1_000_000
RUN = bytes(range(32))
AUTHORITY, INVITE = SigningKey(b"a" * 32), SigningKey(b"i" * 32)
AUTHORITIES = Authorities(RUN, (AUTHORITY.public,))
A, B, C, D, E, X = map(PeerId, "ABCDEX")


def vote(peer: PeerId, chain: Chain, height: int | None = None, value: bytes = b"good") -> MemberVote:
    at = chain.height if height is None else height
    return MemberVote(peer, at, chain.hash_at(at) or bytes(32), Signature(b"key", value))


def cast(*votes: MemberVote, target: PeerId = X, serial: int = 7, run: bytes = RUN) -> Revocation:
    return Revocation(RevocationTerms(run, target, serial), (), tuple(sorted(votes, key=lambda one: one.peer)))


def membership(peer: PeerId, serial: int = 7, uses: int = 9) -> MembershipProof:
    terms = InviteTerms(RUN, serial, INVITE.public, NOW, uses, "contribute", RUN)
    return admit(certified(terms, AUTHORITIES, {0: AUTHORITY}), INVITE, peer)


def book(chain: Chain | None, members: Sequence[PeerId] = (A, B, C, D, E, X)) -> AdmissionBook:
    made = AdmissionBook(AUTHORITIES, verify=lambda peer, signature, text: signature.value == b"good", chain=chain)
    for peer in members:
        made.take_in(membership(peer), peer, NOW)
    return made


def counted(chain: Chain, *votes: MemberVote) -> tuple[int, int]:
    found = tally(X, votes, chain)
    return (found.num_votes, found.num_needed) if found is not None else (0, 0)


@pytest.mark.parametrize(
    ("group", "needed"), [("AX", 2), ("ABX", 2), ("ABCX", 3), ("ABCDX", 4), ("ABCDEX", 4), ("ABCDEFX", 5)]
)
def test_two_thirds_of_those_who_contributed_are_needed_and_the_target_is_one_of_them(group: str, needed: int) -> None:
    chain = Chain([group] * 20)
    votes = [vote(PeerId(peer), chain) for peer in group if peer != X]
    assert counted(chain, *votes) == (len(group) - 1, needed)
    decided = tally(X, votes[: needed - 1], chain)
    assert decided is not None and not decided.is_decided


def test_of_two_sites_neither_can_evict_the_other() -> None:
    chain = Chain(["AX"] * 20)
    found = tally(X, [vote(A, chain)], chain)
    assert found is not None and not found.is_decided


def test_who_came_once_and_left_and_who_never_came_count_nowhere() -> None:
    sybils = "abcdefghij"
    chain = Chain(["ABX"] * 40 + ["ABX" + sybils] + ["ABX"] * 23)
    strangers = [vote(PeerId(peer), chain) for peer in (*sybils, "Z")]
    assert counted(chain, vote(A, chain), *strangers) == (1, 2)


def test_site_that_left_long_ago_neither_votes_nor_is_waited_for() -> None:
    chain = Chain(["ABCDX"] * 30 + ["ABX"] * (WINDOW_ENTRIES - 15))
    assert counted(chain, vote(A, chain), vote(C, chain)) == (1, 2)


def test_site_that_does_not_contribute_any_more_cannot_be_evicted_by_members() -> None:
    chain = Chain(["ABX"] * 10 + ["AB"] * (WINDOW_ENTRIES + 8))
    assert tally(X, [vote(A, chain), vote(B, chain)], chain) is None
    assert height_to_vote_at(chain, A, X, 8) is None
    assert counted(chain, vote(A, chain, 20), vote(B, chain, 20)) == (2, 2)  # as it stood while X was there


def test_old_majority_cannot_evict_who_goes_on_contributing() -> None:
    chain = Chain(["ABX"] * 20 + ["CDX"] * (VOTE_ENTRIES + 1))
    old = (vote(A, chain, 20), vote(B, chain, 20))
    assert tally(X, old, Chain(chain.groups[:100])) is not None
    assert tally(X, old, chain) is None


def test_votes_at_several_heights_are_counted_together_at_the_newest() -> None:
    chain = Chain(["ABCX"] * 200)
    assert counted(chain, vote(A, chain, 150), vote(B, chain, 180), vote(C, chain, 200)) == (3, 3)
    long = Chain(["ABCX"] * (200 + VOTE_ENTRIES))
    assert counted(long, vote(A, long, 150), vote(B, long), vote(C, long)) == (2, 3)


def test_vote_on_another_chain_counts_nothing() -> None:
    ours, theirs = Chain(["ABX"] * 20), Chain(["ABX"] * 20, "fork")
    assert counted(ours, vote(A, ours), vote(B, theirs)) == (1, 2)


def test_vote_stands_below_the_tip_unless_only_the_tip_counts() -> None:
    assert height_to_vote_at(Chain(["ABX"] * 30), A, X, 8) == 22
    assert height_to_vote_at(Chain(["AB"] * 28 + ["ABX"] * 2), A, X, 8) == 30
    assert height_to_vote_at(Chain(["ABX"] * 3), A, X, 8) == 3
    assert height_to_vote_at(Chain([]), A, X, 8) is None
    assert height_to_vote_at(Chain(["ABX"] * 30), C, X, 8) is None


def test_decided_eviction_is_a_revocation_that_closes_the_invite() -> None:
    chain = Chain(["ABX"] * 20)
    found = book(chain)
    assert found.vote(cast(vote(A, chain))) and not found.vote(cast(vote(A, chain)))
    assert found.review().evicted == () and found.is_member(X)
    assert found.vote(cast(vote(B, chain)))
    assert found.review().evicted == (X,)
    assert found.is_evicted(X) and found.closed == {7}
    assert found.undecided.votes == {} and len(found.revocations[X, 7].votes) == 2
    with pytest.raises(WireError, match="evicted"):
        found.take_in(membership(X), X, NOW)


def test_votes_on_several_memberships_of_one_peer_count_together() -> None:
    """It shows another invite to each half of the others: no membership has enough votes of its own."""
    chain = Chain(["ABCX"] * 20)
    found, other = book(chain), book(chain)
    found.vote(cast(vote(A, chain), vote(B, chain)))
    found.vote(cast(vote(A, chain), serial=8))
    assert found.review().evicted == (), "who votes on both counts once"
    found.vote(cast(vote(C, chain), serial=8))
    assert found.review().evicted == (X,) and found.closed == {7, 8}
    for serial in (7, 8):
        with pytest.raises(WireError, match="evicted"):
            found.take_in(membership(X, serial), X, NOW)
    assert found.review() == Review(), "it stays so"
    for told in found.revocations.values():
        other.vote(told)
    assert other.review().evicted == (X,), "who is told all of them says the same"


def test_votes_that_decided_alone_count_for_no_later_membership() -> None:
    chain = Chain(["ABCX"] * 20)
    found = book(chain)
    found.vote(cast(vote(A, chain), vote(B, chain), vote(C, chain)))
    assert found.review().evicted == (X,)
    found.take_in(membership(X, serial=9), X, NOW)
    found.vote(cast(vote(C, chain), serial=9))
    assert found.review().evicted == () and found.is_member(X)


def test_forged_vote_changes_nothing() -> None:
    chain = Chain(["ABX"] * 20)
    found = book(chain)
    with pytest.raises(WireError) as caught:
        found.vote(cast(vote(A, chain), vote(B, chain, value=b"forged")))
    assert caught.value.code == "bad_signature" and not found.undecided.votes
    with pytest.raises(WireError) as caught:
        found.vote(cast(vote(A, chain), run=bytes(32)))
    assert caught.value.code == "wrong_run"


def test_member_cannot_vote_again_and_again_for_all_to_hear() -> None:
    chain = Chain(["ABX"] * 3000)
    found = book(chain)
    forged = [MemberVote(A, 2000, bytes([number] * 32), Signature(b"key", b"good")) for number in range(200)]
    assert sum(bool(found.vote(cast(one))) for one in forged) == 1
    rows = [vote(A, chain, 1100), MemberVote(A, 2900, bytes(32), Signature(b"key", b"good"))] * 50
    assert sum(bool(found.vote(cast(one))) for one in rows) == 1, "what stands gives way to nothing that does not"
    assert sum(bool(found.vote(cast(vote(A, chain, height)))) for height in range(1101, 3001)) == 1900 // RENEW_ENTRIES


def test_vote_that_would_be_forgotten_at_once_is_no_news() -> None:
    chain = Chain(["ABX"] * (2 * VOTE_ENTRIES + 10))
    found = book(chain)
    assert not found.vote(cast(vote(A, chain, 10)))
    assert found.vote(cast(vote(A, chain, 11)))


def test_vote_on_our_chain_takes_the_place_of_one_on_a_branch_that_was_dropped() -> None:
    dropped, kept = Chain(["ABX"] * 30, "dropped"), Chain(["ABX"] * 25, "kept")
    found = book(dropped)
    assert found.vote(cast(vote(A, dropped)))
    found.chain = kept
    found.chain.groups += ["ABX"] * 5
    assert found.vote(cast(vote(A, kept, 20))) and not found.vote(cast(vote(A, dropped)))


def test_votes_of_one_voter_are_taken_up_only_so_often() -> None:
    chain, left = Chain(["ABX"] * 20), [A]
    made = AdmissionBook(
        AUTHORITIES, verify=lambda peer, signature, text: signature.value == b"good", chain=chain,
        is_in_time=lambda voter: voter in left and not left.remove(voter),
    )  # fmt: skip
    for peer in (A, B, X):
        made.take_in(membership(peer), peer, NOW)
    with pytest.raises(WireError, match="not signed"):
        made.vote(cast(vote(A, chain, value=b"forged")))
    assert made.vote(cast(vote(A, chain))) and not made.vote(cast(vote(A, chain), target=B))


def test_voter_that_votes_again_undoes_nothing_that_was_decided() -> None:
    chain = Chain(["ABX"] * 20 + ["AB"] * 100)
    decided = cast(vote(A, chain, 20), vote(B, chain, 20))
    found = book(chain)
    found.vote(cast(vote(A, chain)))
    assert not found.vote(cast(vote(A, chain, 20))) and found.review().evicted == ()
    assert found.vote(decided) and found.review().evicted == (X,)
    assert not found.vote(cast(vote(B, chain))) and found.review() == Review()
    assert found.revocations[X, 7] == decided


def test_fork_undoes_an_eviction_of_the_chain_that_was_given_up_and_votes_there_may_decide_again() -> None:
    dropped, kept = Chain(["ABX"] * 20, "dropped"), Chain(["ABX"] * 25, "kept")
    found = book(dropped)
    found.vote(cast(vote(A, dropped), vote(B, dropped)))
    assert found.review().evicted == (X,)
    found.chain = kept
    assert found.review().reinstated == (X,) and found.is_member(X) and not found.closed
    found.vote(cast(vote(A, kept), vote(B, kept)))
    assert found.review().evicted == (X,)


def test_rollback_below_the_vote_undoes_nothing_until_the_entries_are_there_again() -> None:
    chain = Chain(["ABX"] * 20)
    found = book(chain)
    found.vote(cast(vote(A, chain), vote(B, chain)))
    found.review()
    found.chain = Chain(chain.groups[:5])
    assert found.review() == Review() and found.is_evicted(X)


def test_authority_makes_an_eviction_by_votes_final() -> None:
    dropped, kept = Chain(["ABX"] * 20, "dropped"), Chain(["ABX"] * 25, "kept")
    found = book(dropped)
    found.vote(cast(vote(A, dropped), vote(B, dropped)))
    found.review()
    assert found.revoke(revoked(RevocationTerms(RUN, X, 7), AUTHORITIES, {0: AUTHORITY}))
    found.chain = kept
    assert found.review().reinstated == () and found.is_evicted(X)


def test_votes_on_entries_that_we_lack_wait_for_them() -> None:
    chain = Chain(["ABX"] * 20)
    for early in (None, Chain(chain.groups[:12])):
        found = book(early, members=(A, X))
        assert found.vote(cast(vote(A, chain), vote(B, chain))) == () and found.has_votes
        found.chain = chain
        assert found.review().evicted == (X,)


def test_restart_keeps_what_was_decided_and_lets_in_again_what_a_fork_undoes() -> None:
    chain, kept = Chain(["ABX"] * 20), Chain(["ABX"] * 25, "kept")
    before = book(chain)
    before.vote(cast(vote(A, chain), vote(B, chain)))
    before.review()
    after = book(None, members=())
    for revocation in before.revocations.values():
        after.recall(revocation)
    for proof in (*before.members.values(), *before.set_aside()):
        after.recall_member(proof)
    assert after.is_evicted(X) and after.is_member(A)
    after.chain = kept
    assert after.review().reinstated == (X,) and after.is_member(X)


def test_votes_take_a_bounded_room() -> None:
    members = [PeerId(f"m{number}") for number in range(400)]
    chain = Chain(["ABX"] * 20)
    found = book(chain, (A, B))
    found.members |= {peer: membership(peer) for peer in members}
    for target in members:
        found.vote(cast(vote(A, chain), target=target))
    assert len(found.undecided.votes) == VOTES_OF_ONE_MAX
    for number, voter in enumerate(members):
        found.vote(cast(vote(voter, chain), target=members[number - 1]))
    assert len(found.undecided.votes) == UNDECIDED_MAX
    for serial in range(100):
        found.vote(cast(MemberVote(B, 10**6, bytes(32), Signature(b"key", b"good")), serial=serial))
    assert len(found.waiting()) == WAITING_MAX
    chain.groups += ["AB"] * (3 * VOTE_ENTRIES)
    found.review()
    assert found.undecided.votes == {}


def test_votes_of_strangers_on_far_entries_push_no_members_votes_out() -> None:
    chain = Chain(["ABX"] * 20)
    found = book(Chain(chain.groups[:12]), members=(A, B, X))
    found.vote(cast(vote(A, chain), vote(B, chain)))
    for number in range(2 * WAITING_MAX):
        stranger = MemberVote(PeerId(f"s{number}"), 10**9, bytes(32), Signature(b"key", b"good"))
        found.vote(cast(stranger, serial=number))
    assert len(found.waiting()) == WAITING_MAX
    found.chain = chain
    assert found.review().evicted == (X,)


def test_members_votes_that_wait_give_way_to_members_only() -> None:
    found = book(Chain(["ABX"] * 20))
    far = [cast(MemberVote(A, 10**9, bytes(32), Signature(b"key", b"good")), serial=n) for n in range(WAITING_MAX)]
    for one in far:
        found.vote(one)
    # A stranger's is refused before its signatures are looked at.
    assert not found.vote(cast(MemberVote(PeerId("s"), 10**9, bytes(32), Signature(b"key", b"forged"))))
    assert found.waiting() == tuple(far)
    newer = cast(MemberVote(B, 10**9, bytes(32), Signature(b"key", b"good")))
    found.vote(newer)
    assert found.waiting() == (*far[1:], newer)


@pytest.mark.parametrize("seed", range(30))
def test_all_sites_say_the_same_in_whatever_order_votes_and_entries_come(seed: int) -> None:
    """Sites with one chain at the end, that met votes, forks and entries in their own order, hold one decision."""
    rng = random.Random(seed)
    peers = [PeerId(f"p{number}") for number in range(rng.randrange(3, 9))]
    names = {peer: chr(65 + number) for number, peer in enumerate(peers)}
    letters = [PeerId(name) for name in names.values()]
    target = letters[-1]
    groups = ["".join(rng.sample(letters, rng.randrange(2, len(letters) + 1))) for _ in range(rng.randrange(5, 150))]
    chain = Chain(groups)
    fork = Chain([*groups[: rng.randrange(len(groups))], *["".join(letters)] * 3], "fork")
    votes = [
        vote(peer, rng.choice([chain, chain, fork]), rng.randrange(1, chain.height + 1))
        for peer in rng.sample(letters[:-1], rng.randrange(1, len(letters)))
    ]
    outcomes = set()
    for _ in range(4):
        site = book(None, members=letters)
        for one in rng.sample(votes, len(votes)):
            if rng.random() < 0.5:
                site.chain = rng.choice([fork, Chain(groups[: rng.randrange(len(groups))]), chain])
            site.review()
            site.vote(cast(one, target=target))
        site.chain = chain
        site.review()
        for one in votes:  # peers tell what they know when they meet
            site.vote(cast(one, target=target))
        site.review()
        outcomes.add(site.is_member(target))
    assert len(outcomes) == 1
