"""Offers are checked before the round machine hears a message (R25)."""

from dataclasses import replace

import pytest

from dilocoxd.daemon.round.offers import REMEMBERED_MAX, OfferCheck
from dilocoxd.ids import PeerId
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.wire.entry import Contribution, Signature, offer_text
from dilocoxd.wire.messages import Propose, Ready
from tests.unit.daemon.chain.chain_maker import GENESIS, KEYS, signature_of
from tests.unit.machines.round_world import B, C, contribution, proposal, ready

NUM_CONTRIBUTORS = 2


def offered(work: Contribution) -> Signature:
    return signature_of(work.peer, offer_text(GENESIS, work))


def said(peer: PeerId) -> Ready:
    return replace(ready(peer), offer=offered(contribution(peer)))


def proposed(*peers: PeerId) -> Propose:
    plain = proposal(*peers)
    return replace(plain, offers=tuple(offered(work) for work in plain.contributions))


@pytest.fixture
def check() -> OfferCheck:
    return OfferCheck(KEYS, NUM_CONTRIBUTORS)


def test_offer_of_its_peer_is_heard(check: OfferCheck) -> None:
    assert not check.problem(said(B))
    assert not check.problem(ready())
    assert not check.problem(proposed(B, C))


@pytest.mark.parametrize(
    "message",
    [
        replace(said(B), contribution=contribution(C)),
        replace(said(B), contribution=replace(contribution(B), tokens=11)),
        replace(said(B), offer=None),
        replace(ready(), offer=offered(contribution(B))),
        replace(proposed(B, C), offers=proposed(B, C).offers[::-1]),
        replace(proposed(B, C), offers=proposed(B, C).offers[:1]),
        replace(proposed(B, C), contributions=(contribution(B), contribution(C, 1))),
    ],
)
def test_offer_that_its_peer_did_not_sign_is_a_problem(check: OfferCheck, message: Ready | Propose) -> None:
    check.problem(said(B))
    assert check.problem(message)


def test_what_was_right_is_checked_once_and_a_flood_is_bounded() -> None:
    asked: list[PeerId] = []

    def verify(peer: PeerId, signature: Signature, text: bytes) -> bool:
        asked.append(peer)
        return True

    check = OfferCheck(VoteKeys(GENESIS, KEYS.sign, verify), NUM_CONTRIBUTORS)
    for _ in range(3):
        assert not check.problem(said(B))
    assert asked == [B]
    for phase in range(REMEMBERED_MAX + 10):
        check.problem(ready(C, phase=phase))
    assert len(check._known) == REMEMBERED_MAX
    assert not check.problem(proposed(B, C, PeerId("pD"))), "the machine refuses it for its size"
    assert len(asked) == 1 + REMEMBERED_MAX + 10
