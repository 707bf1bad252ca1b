"""Votes to take back an entry that spoiled the model: when they are cast, counted and believed, what follows (R29)."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.chain import RECENT_ENTRIES, ChainView
from dilocoxd.machines.limits import Ourselves, VoteKeys
from dilocoxd.machines.peers.reverts import ATTEMPTS_EACH, DECIDED_MAX, IN_ROUNDS_MAX, VOTE_DEPTH, Reverts
from dilocoxd.machines.peers.tips import BEHIND, FORK, Tips
from dilocoxd.machines.round import inputs as e, outcomes as o, outputs as c
from dilocoxd.machines.round.life import RoundLife
from dilocoxd.machines.round.voting import on_take_back
from dilocoxd.wire.entry import Signature, SignedVote, taken_back, vote_text
from dilocoxd.wire.messages import Ready, TakeBack
from tests.unit.daemon.chain.chain_maker import base_view, chain
from tests.unit.machines.round_world import BITS, HEAD, ME, RUN, START, B, C, D, held_of, terms, view

PEERS = (ME, B, C, D)
ATTEMPT = taken_back(RoundIndex(0), HEAD).attempt


def signed(peer: PeerId, number: int, digest: Digest) -> SignedVote:
    """A signature is right if it names peer and text."""
    text = vote_text(HEAD, taken_back(RoundIndex(number), digest), 7)
    return SignedVote(peer, ATTEMPT, 7, Signature(b"k", peer.encode() + text))


def keys() -> VoteKeys:
    def sign(what: object) -> SignedVote:
        return SignedVote(ME, ATTEMPT, 7, Signature(b"k", ME.encode() + vote_text(HEAD, what, 7)))  # type: ignore[arg-type]

    return VoteKeys(HEAD, sign, lambda peer, signature, text: signature.value == peer.encode() + text)


SITE = Ourselves(ME, RUN, HEAD, keys())


def chain_of(length: int, peers: tuple[PeerId, ...] = PEERS) -> ChainView:
    found = base_view()
    for entry in chain(length, peers=tuple(sorted(peers))):
        found = found.extended(entry.entry, BITS)
    return found


def told(view: ChainView, number: int, *peers: PeerId) -> TakeBack:
    digest = view.hash_at(number)
    assert digest is not None
    return TakeBack(RoundIndex(number), digest, tuple(signed(peer, number, digest) for peer in sorted(peers)))


def test_more_than_half_of_those_who_could_vote_below_it_are_needed() -> None:
    reverts, tip = Reverts(), chain_of(6)
    assert not reverts.hear(told(tip, 5, B, C), tip, SITE.keys) and reverts.due(tip) is None, "half is not more"
    assert not reverts.hear(told(tip, 5, C, D), tip, SITE.keys), "votes of several messages are added up"
    found = reverts.due(tip)
    assert found is not None and [vote.peer for vote in found.votes] == sorted([B, C, D]) and found.round == 5
    assert reverts.take_news() == [found] and not reverts.take_news() and not reverts.votes


@pytest.mark.parametrize("number", [0, 6, 7])
def test_nobody_takes_back_entry_0_or_one_that_is_not_there(number: int) -> None:
    reverts, tip = Reverts(), chain_of(6)
    digest = tip.hash_at(number) or Digest(b"?" * 32)
    message = TakeBack(RoundIndex(number), digest, tuple(signed(peer, number, digest) for peer in PEERS))
    reverts.hear(message, tip, SITE.keys)
    assert reverts.due(tip) is None and (number == 6) == bool(reverts.decided), "of the next round others may know more"


def test_strangers_and_peers_that_came_later_have_no_vote() -> None:
    tip, late = chain_of(5, (ME, B, C)), PeerId("late")
    for entry in chain(1, start=5, parent=tip.head, peers=(*sorted((ME, B, C)), late)):
        tip = tip.extended(
            replace(entry.entry, contributions=tuple(sorted(entry.entry.contributions, key=lambda one: one.peer))), BITS
        )
    reverts = Reverts()
    reverts.hear(told(tip, 5, B, late, D), tip, SITE.keys)
    assert set(reverts.votes[tip.head]) == {B} and not reverts.decided
    assert late in (tip.electorate_at(6) or ()), "it could vote from the next entry on"


def test_vote_that_its_peer_did_not_sign_is_counted_against_who_brings_it() -> None:
    life = RoundLife(replace(terms(), site=SITE), chain_of(6))
    right = told(life.height.chain, 5, B, C)
    false = replace(right, votes=(right.votes[0], replace(right.votes[1], signature=Signature(b"k", b"false"))))
    plain = replace(right, votes=tuple(replace(vote, attempt=Attempt(0)) for vote in right.votes))
    for message in (false, plain):
        found = on_take_back(life.height, D, message)
        assert found is not None and (found.peer, found.rule) == (D, "bad_signature")
    assert on_take_back(life.height, D, right) is None


def test_of_an_entry_of_others_only_a_certificate_is_kept() -> None:
    reverts, tip, digest = Reverts(), chain_of(6), Digest(b"other".ljust(32))
    for voters in ((B,), (B, C), (B, C, D)):
        assert not reverts.decided and not reverts.votes
        reverts.hear(TakeBack(RoundIndex(5), digest, tuple(signed(peer, 5, digest) for peer in voters)), tip, SITE.keys)
    assert list(reverts.decided) == [digest] and reverts.due(tip) is None and digest in reverts.dead


def test_site_votes_for_the_oldest_suspect_and_for_a_younger_one_with_others() -> None:
    reverts, tip = Reverts(), chain_of(8)
    assert [one.round for one in reverts.vote((RoundIndex(6), RoundIndex(8)), tip, SITE)] == [6]
    assert not reverts.vote((RoundIndex(6), RoundIndex(8)), tip, SITE), "once"
    reverts.hear(told(tip, 7, B), tip, SITE.keys)
    assert [one.round for one in reverts.vote((RoundIndex(6), RoundIndex(8)), tip, SITE)] == [7]
    unsure = Reverts()
    assert not unsure.vote((None, RoundIndex(8)), tip, SITE), "who has no witness of a sound state follows others"
    unsure.hear(told(tip, 6, B), tip, SITE.keys)
    assert [one.round for one in unsure.vote((None, RoundIndex(8)), tip, SITE)] == [6]


def test_nobody_votes_for_an_old_one_nor_without_a_vote_of_its_own_nor_for_a_fourth() -> None:
    tip = chain_of(9)
    assert not Reverts().vote((RoundIndex(8 - VOTE_DEPTH), RoundIndex(9)), tip, SITE)
    assert not Reverts().vote((RoundIndex(8), RoundIndex(9)), chain_of(9, (B, C)), SITE)
    reverts = Reverts()
    for number in range(IN_ROUNDS_MAX):
        digest = Digest(bytes([number]) * 32)
        assert reverts.vote((RoundIndex(8), RoundIndex(9)), tip, SITE) or number, "room for another one"
        reverts.hear(TakeBack(RoundIndex(8), digest, tuple(signed(peer, 8, digest) for peer in PEERS)), tip, SITE.keys)
    reverts.votes.clear()
    assert len(reverts.decided) == IN_ROUNDS_MAX and not reverts.vote((RoundIndex(8), RoundIndex(9)), tip, SITE)


def test_books_are_bounded() -> None:
    reverts, tip = Reverts(), chain_of(12)
    for number in range(2 * DECIDED_MAX):
        digest = Digest(bytes([number]) * 32)
        reverts.hear(
            TakeBack(RoundIndex(11), digest, tuple(signed(peer, 11, digest) for peer in PEERS)), tip, SITE.keys
        )
    assert len(reverts.decided) == DECIDED_MAX
    reverts.hear(told(tip, 4, B), tip, SITE.keys)
    assert list(reverts.votes) == [tip.hash_at(4)]
    reverts.reach(chain_of(4 + RECENT_ENTRIES + 1))
    assert not reverts.votes, "too old"


def test_certificate_is_on_disk_before_it_is_told_or_followed_and_is_there_after_a_restart() -> None:
    life = RoundLife(replace(terms(), site=SITE), chain_of(6))
    life.advance(START, None)
    life.start(None)
    life.book.see([view(B, height=6, head=life.height.chain.head)], life.height.chain, START)
    life.book.reverts.hear(told(life.height.chain, 5, B, C, D), life.height.chain, SITE.keys)
    life.advance(START, None)
    life.take_back()
    found = [type(one) for one in life.out]
    assert found == [c.PersistReverts, c.Broadcast]
    due = life.left_behind()
    assert isinstance(due, o.Recover) and due.takes_back is not None and due.takes_back.round == 5
    life.advance(START, None)
    life.recover(due, is_gathering=True)
    [order] = [one for one in life.out if isinstance(one, c.StartRecovery)]
    assert order.takes_back == 5 and order.reverted == {life.height.chain.head}
    assert life.left_behind() is None, "not tried twice from here"
    again = Reverts()
    again.load(tuple(life.book.reverts.decided.values()))
    assert again.due(life.height.chain) == due.takes_back and not again.take_news()


def test_way_back_begins_in_attempts_of_its_own_without_the_lock() -> None:
    life, tip = RoundLife(replace(terms(), site=SITE), chain_of(6)), chain_of(6)
    life.advance(START, None)
    life.start(None)
    below = chain_of(5)
    life.promises[RoundIndex(5), below.head] = c.Promise(
        RoundIndex(5), below.head, Attempt(2), Attempt(2), chain(6, peers=tuple(sorted(PEERS)))[5].entry, PEERS, ()
    )
    life.book.reverts.hear(told(tip, 5, B, C, D), tip, SITE.keys)
    due = life.left_behind()
    assert isinstance(due, o.Recover)
    life.own.spoiled = (RoundIndex(5), RoundIndex(6))
    life.recover(due, is_gathering=True)
    life.advance(START, None)
    life.resume(e.RecoveryFinished(below, None))
    assert life.height.attempt.index == ATTEMPTS_EACH and life.height.lock is None and life.own.spoiled is None
    said = [one.message for one in life.out if isinstance(one, c.Broadcast)]
    assert [type(one) for one in said[-2:]] == [TakeBack, Ready], "who does not know it does not believe our attempt"
    assert life.height.summary(held_of(ME), START).num_attempts == 1, "what people see begins at one"


def test_nobody_is_ahead_on_a_chain_with_it() -> None:
    life = RoundLife(replace(terms(), site=SITE), chain_of(5))
    tips: Tips = life.book.tips
    digest = Digest(b"spoiled".ljust(32))
    claim = (life.height.chain, B, RoundIndex(5), digest)
    assert tips.hear(*claim, START) == FORK
    message = TakeBack(RoundIndex(5), digest, tuple(signed(peer, 5, digest) for peer in (B, C, D)))
    life.book.reverts.hear(message, life.height.chain, SITE.keys)
    assert tips.hear(*claim, START) == BEHIND and not tips.claims
