"""Authorities are rotated and lost keys replaced: which list is in force, and whom it lets in (protocol M8 to M10)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.authority_book import KNOWN_MAX, SIBLINGS_MAX, AuthorityBook
from dilocoxd.machines.admission.certificates import Authorities, admit, certified, changed, revoked
from dilocoxd.machines.admission.gate import VOID_SLACK_ENTRIES, AdmissionBook
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.wire.admission import InviteTerms, MembershipProof, MemberVote, Revocation, RevocationTerms
from dilocoxd.wire.authorities import AuthorityChange, AuthorityTerms, change_hash
from dilocoxd.wire.entry import Signature
from tests.unit.machines.admission.chains import Chain

NOW = 1_000_000
RUN = bytes(range(32))
OLD, NEW, NEXT, THIEF, INVITE = (SigningKey(letter * 32) for letter in (b"o", b"n", b"x", b"t", b"i"))
FIRST = Authorities(RUN, (OLD.public,))
A, B, C, D = map(PeerId, "ABCD")


def terms_after(before: Authorities, *keys: SigningKey, threshold: int = 1, void_from: int = 0) -> AuthorityTerms:
    public = tuple(key.public for key in keys)
    return AuthorityTerms(RUN, before.number + 1, before.listed, public, threshold, void_from)


def listed(terms: AuthorityTerms) -> Authorities:
    return Authorities(RUN, terms.keys, terms.threshold, terms.number, change_hash(terms))


def rotation(before: Authorities, signer: SigningKey, *keys: SigningKey, void_from: int = 0) -> AuthorityChange:
    return changed(terms_after(before, *keys, void_from=void_from), before, {before.keys.index(signer.public): signer})


def votes(terms: AuthorityTerms, chain: Chain, voters: str, height: int | None = None) -> AuthorityChange:
    at = chain.height if height is None else height
    cast = (MemberVote(PeerId(peer), at, chain.hash_at(at) or bytes(32), Signature(b"key", b"good")) for peer in voters)
    return AuthorityChange(terms, (), tuple(sorted(cast, key=lambda one: one.peer)))


def made(chain: Chain | None = None) -> AdmissionBook:
    return AdmissionBook(FIRST, verify=lambda peer, signature, text: signature.value == b"good", chain=chain)


def take(book: AdmissionBook, *changes: AuthorityChange) -> list[AuthorityChange]:
    news = [book.authorities.take(change, book.chain) for change in changes]
    if book.chain is not None:
        book.review()
    else:
        book.authorities.follow()
    return [one for one in news if one is not None]


def membership(
    peer: PeerId, by: Authorities, key: SigningKey, *, serial: int = 7, not_after_ms: int = NOW
) -> MembershipProof:
    terms = InviteTerms(RUN, serial, INVITE.public, not_after_ms, 9, "contribute", by.listed)
    return admit(certified(terms, by, {by.keys.index(key.public): key}), INVITE, peer)


def refusal(book: AdmissionBook, proof: MembershipProof) -> str:
    with pytest.raises(WireError) as caught:
        book.take_in(proof, proof.peer, NOW)
    return caught.value.code


def test_authorities_hand_over_to_others_and_those_to_others() -> None:
    book, first = made(), rotation(FIRST, OLD, NEW)
    second = rotation(listed(first.terms), NEW, NEXT)
    assert take(book, first) == [first] and take(book, first) == []
    assert book.authorities.now == listed(first.terms)
    assert take(book, second) == [second]
    assert book.authorities.now.keys == (NEXT.public,) and book.authorities.now.number == 2


def test_change_of_a_list_that_is_not_known_is_neither_kept_nor_held_against_anybody() -> None:
    book, first = made(), rotation(FIRST, OLD, NEW)
    assert take(book, rotation(listed(first.terms), NEW, NEXT)) == []
    assert book.authorities.now == FIRST and not book.authorities.changes


def test_change_needs_as_many_signatures_as_the_list_before_asks_for() -> None:
    pair = Authorities(RUN, (OLD.public, NEW.public), threshold=2)
    book = AuthorityBook(pair, lambda *_: True, lambda _: True, lambda _: True)
    terms = terms_after(pair, NEXT)
    with pytest.raises(WireError, match="signed by 1 of the authorities, 2 decide"):
        book.take(changed(terms, pair, {0: OLD}), None)
    with pytest.raises(WireError, match="signature of authority number 1 is wrong"):
        book.take(changed(terms, pair, {0: OLD, 1: THIEF}), None)
    with pytest.raises(WireError, match="signed by 0"):
        book.take(AuthorityChange(terms, (), ()), None)
    assert book.take(changed(terms, pair, {0: OLD, 1: NEW}), None) is not None


@pytest.mark.parametrize(("field", "code"), [("run", "wrong_run"), ("number", "malformed")])
def test_change_of_another_run_or_number_is_refused(field: str, code: str) -> None:
    fields = {"run": RUN, "number": 1, "before": RUN, field: bytes(32) if field == "run" else 2}
    terms = AuthorityTerms(**fields, keys=(NEW.public,), threshold=1, void_from=0)  # type: ignore[arg-type]
    with pytest.raises(WireError) as caught:
        made().authorities.take(changed(terms, FIRST, {0: OLD}), None)
    assert caught.value.code == code
    with pytest.raises(WireError) as caught:
        made().authorities.recall(votes(terms, Chain(["ABC"] * 20), "AB"))
    assert caught.value.code == code


def test_of_two_signed_changes_the_smaller_hash_is_in_force_in_whatever_order_they_come() -> None:
    rivals = [rotation(FIRST, OLD, key) for key in (NEW, NEXT, THIEF)]
    best = min(rivals, key=lambda one: change_hash(one.terms))
    for order in itertools.permutations(rivals):
        book = made()
        take(book, *order)
        assert book.authorities.now == listed(best.terms)
        assert len(book.authorities.rivals()) == 2


def test_what_hangs_on_the_loser_falls() -> None:
    one, other = sorted((rotation(FIRST, OLD, NEW), rotation(FIRST, OLD, NEXT)), key=lambda c: change_hash(c.terms))
    key = NEW if other.terms.keys == (NEW.public,) else NEXT
    book, on_loser = made(), rotation(listed(other.terms), key, THIEF)
    take(book, other, on_loser)
    assert book.authorities.now.number == 2
    take(book, one)
    assert book.authorities.now == listed(one.terms)
    assert book.authorities.void_from(change_hash(on_loser.terms)) == 0


def test_thief_with_the_old_key_fills_no_memory() -> None:
    book = made()
    rivals = [rotation(FIRST, OLD, SigningKey(bytes([number]) * 32)) for number in range(1, 40)]
    take(book, *rivals)
    best = sorted(change_hash(one.terms) for one in rivals)[:SIBLINGS_MAX]
    assert sorted(book.authorities.changes) == best


def test_members_replace_authorities_whose_keys_are_lost() -> None:
    chain = Chain(["ABC"] * 20)
    book, terms = made(chain), terms_after(FIRST, NEW)
    for peer in (A, B, C):
        book.members[peer] = membership(peer, FIRST, OLD)
    assert take(book, votes(terms, chain, "A")) and book.authorities.now == FIRST
    found = book.authorities.tally(terms, chain)
    assert found is not None and (found.num_votes, found.num_needed) == (1, 2)
    assert take(book, votes(terms, chain, "B")) and book.authorities.now == listed(terms)
    assert not book.authorities.undecided.votes


@pytest.mark.parametrize("group", ["A", "AB"])
def test_fewer_than_three_sites_replace_nobody(group: str) -> None:
    chain = Chain([group] * 20)
    book, terms = made(chain), terms_after(FIRST, NEW)
    take(book, votes(terms, chain, group))
    assert book.authorities.now == FIRST


def test_votes_of_strangers_and_on_another_chain_replace_nobody() -> None:
    chain, fork = Chain(["ABC"] * 20), Chain(["ABC"] * 20, "fork")
    book, terms = made(chain), terms_after(FIRST, NEW)
    take(book, votes(terms, chain, "XYZ"), votes(terms, fork, "ABC"))
    assert book.authorities.now == FIRST
    forged = AuthorityChange(terms, (), (MemberVote(A, 20, chain.hash_at(20) or b"", Signature(b"key", b"forged")),))
    with pytest.raises(WireError, match="bad_signature"):
        take(book, forged)


def test_members_beat_a_thief_and_the_present_majority_an_old_one() -> None:
    chain = Chain(["ABC"] * 100 + ["CDE"] * 100)
    by_old, by_now = terms_after(FIRST, NEXT), terms_after(FIRST, NEW)
    for stolen in (rotation(FIRST, OLD, SigningKey(bytes([number]) * 32)) for number in range(1, 9)):
        book = made(chain)
        take(book, stolen, votes(by_old, chain, "ABC", 64))
        assert book.authorities.now == listed(by_old)
        take(book, votes(by_now, chain, "CDE"), stolen)
        assert book.authorities.now == listed(by_now)


def test_thief_who_fills_the_book_with_changes_does_not_keep_members_from_deciding() -> None:
    chain = Chain(["ABC"] * 20)
    book, terms, level = made(chain), terms_after(FIRST, NEW), [(FIRST, OLD)]
    while len(book.authorities.changes) < KNOWN_MAX:
        before, key = level.pop(0)
        for number in range(min(SIBLINGS_MAX, KNOWN_MAX - len(book.authorities.changes))):
            change = rotation(before, key, SigningKey(bytes([number]) * 32))
            assert book.authorities.take(change, chain) is not None
            level.append((listed(change.terms), SigningKey(bytes([number]) * 32)))
    book.review()
    late = rotation(*level[0], NEXT)
    assert take(book, late, votes(terms, chain, "AB")) == [votes(terms, chain, "AB")], "votes come behind it"
    assert book.authorities.now == listed(terms) and len(book.authorities.changes) == KNOWN_MAX


def test_votes_for_a_signed_change_make_it_final() -> None:
    chain = Chain(["ABC"] * 20)
    book, good = made(chain), rotation(FIRST, OLD, NEW)
    take(book, good, votes(good.terms, chain, "AB"))
    take(book, *(rotation(FIRST, OLD, SigningKey(bytes([number]) * 32)) for number in range(1, 9)))
    assert book.authorities.now == listed(good.terms)


def test_replacement_falls_with_the_branch_that_it_was_voted_on() -> None:
    chain = Chain(["ABC"] * 20)
    book, terms = made(chain), terms_after(FIRST, NEW)
    take(book, votes(terms, chain, "ABC"))
    assert book.authorities.now == listed(terms)
    book.chain = Chain(["ABC"] * 10)
    assert not book.review().has_new_authorities, "entries that we lack decide nothing"
    book.chain = Chain(["ABC"] * 21, "fork")
    assert book.review().has_new_authorities and book.authorities.now == FIRST
    book.chain = chain
    assert book.review().has_new_authorities and book.authorities.now == listed(terms)


def test_votes_that_come_before_the_chain_count_when_it_is_there() -> None:
    chain = Chain(["ABC"] * 20)
    book, terms = made(Chain([])), terms_after(FIRST, NEW)
    take(book, votes(terms, chain, "ABC"))
    assert book.authorities.now == FIRST
    book.chain = chain
    assert book.review().has_new_authorities and book.authorities.now == listed(terms)


def test_all_sites_follow_the_same_list_in_whatever_order_changes_come() -> None:
    chain = Chain(["ABC"] * 100)
    rng = random.Random(3)
    one, two = rotation(FIRST, OLD, NEW), rotation(FIRST, OLD, THIEF)
    after = [rotation(listed(one.terms), NEW, NEXT), rotation(listed(two.terms), THIEF, NEXT)]
    voted = [terms_after(FIRST, NEXT), terms_after(FIRST, NEXT, void_from=5)]
    pool = [one, two, *after, votes(voted[0], chain, "AB", 70), votes(voted[1], chain, "BC", 90)]
    found = set()
    for _ in range(30):
        book = made(chain)
        rows = list(pool)
        rng.shuffle(rows)
        for _ in range(3):  # everybody tells again whomever it meets
            take(book, *rows)
        found.add(book.authorities.now.listed)
    assert found == {change_hash(voted[1])}


def test_invites_of_each_list_are_good_until_a_change_says_that_they_are_void() -> None:
    book, first = made(Chain([])), rotation(FIRST, OLD, NEW)
    new = listed(first.terms)
    assert refusal(book, membership(A, new, NEW)) == "unknown_authorities"
    take(book, first)
    assert book.take_in(membership(A, new, NEW), A, NOW) and book.take_in(membership(B, FIRST, OLD), B, NOW)
    take(book, rotation(new, NEW, NEXT, void_from=1))
    book.chain = Chain(["AB"] * 3)
    assert refusal(book, membership(C, FIRST, OLD)) == refusal(book, membership(C, new, NEW)) == "invite_void"
    assert book.is_member(A) and book.is_member(B), "nobody is thrown out"


def test_member_by_a_void_invite_is_let_in_by_whoever_has_its_entries() -> None:
    book = made(Chain(["AB"] * 5))
    take(book, rotation(FIRST, OLD, NEW, void_from=3))
    assert book.take_in(membership(A, FIRST, OLD, not_after_ms=1), A, NOW)
    assert refusal(book, membership(C, FIRST, OLD)) == "invite_void"


def test_newcomer_keeps_of_void_invites_only_whom_the_chain_names() -> None:
    book = made(Chain([]))
    book.is_catching_up = True
    take(book, rotation(FIRST, OLD, NEW, void_from=3))
    for peer in (A, C):
        assert book.take_in(membership(peer, FIRST, OLD), peer, NOW)
    book.chain = Chain(["AB"] * 5)
    assert book.settle_credit() == (C,)
    assert book.is_member(A) and not book.is_member(C)


def evicted(peer: PeerId, by: Authorities, key: SigningKey) -> Revocation:
    return revoked(RevocationTerms(RUN, peer, 7), by, {0: key})


def test_stolen_key_evicts_nobody_who_contributes_once_it_is_void() -> None:
    book = made(Chain(["ABC"] * (5 + VOID_SLACK_ENTRIES) + ["AC"] * 20))
    for peer in (A, B, C):
        book.members[peer] = membership(peer, FIRST, OLD)
    take(book, rotation(FIRST, OLD, NEW, void_from=5))
    assert not book.revoke(evicted(A, FIRST, OLD)) and book.is_member(A)
    assert book.revoke(evicted(B, FIRST, OLD)) and not book.is_member(B), "it was evicted in time"
    new = Authorities(RUN, (NEW.public,), 1, 1, book.authorities.now.listed)
    assert book.revoke(evicted(C, new, NEW)) and not book.is_member(C)


def test_evictions_of_a_list_that_lost_are_undone() -> None:
    chain = Chain(["ABC"] * 40)
    book, stolen = made(chain), rotation(FIRST, OLD, THIEF)
    for peer in (A, B, C):
        book.members[peer] = membership(peer, FIRST, OLD)
    take(book, stolen)
    assert book.revoke(evicted(A, listed(stolen.terms), THIEF)) and not book.is_member(A)
    take(book, votes(terms_after(FIRST, NEW), chain, "BC"))
    assert book.is_member(A)


def test_restart_believes_what_was_decided_before() -> None:
    chain = Chain(["ABC"] * 20)
    signed, terms = rotation(FIRST, OLD, NEW), terms_after(listed(rotation(FIRST, OLD, NEW).terms), NEXT)
    rows: Sequence[AuthorityChange] = (signed, votes(terms, chain, "AB"))
    book = made()
    for row in rows:
        book.authorities.recall(row)
    assert book.authorities.now == listed(terms)
    book.chain = chain
    book.review()
    assert book.authorities.now == listed(terms)
    book.chain = Chain(["ABC"] * 20, "fork")
    book.review()
    assert book.authorities.now == listed(signed.terms)
