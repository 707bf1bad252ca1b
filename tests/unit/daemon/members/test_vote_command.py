"""What `dilocoxd evict` answers where the vote does not simply count (daemon/peers/members.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from dilocoxd.daemon.chain.contributors import ContributorRoll
from dilocoxd.daemon.peers.members import Members
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.machines.admission.vote_book import VOTES_OF_ONE_MAX
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.swarm.discovery.decisions import Decisions
from dilocoxd.swarm.discovery.identity import Identity, load_or_create
from tests.unit.machines.admission.chains import Chain
from tests.unit.machines.admission.test_eviction import AUTHORITIES, NOW, X, membership


@dataclass
class Network:
    admissions: Admissions
    decisions: Decisions


def made(
    me: Identity, groups: list[tuple[PeerId, ...]], *, is_in_time: Callable[[PeerId], bool] = lambda peer: True
) -> tuple[Members, Any]:
    chain = Chain(["-"] * len(groups))
    chain.of_entry = lambda index: groups[index]  # type: ignore[method-assign]
    chain.last_entry = lambda peer: max(i for i, group in enumerate(groups) if peer in group)  # type: ignore
    book = AdmissionBook(AUTHORITIES, verify=lambda peer, signature, text: True, chain=chain, is_in_time=is_in_time)
    for peer in (me.peer_id, X):
        book.take_in(membership(peer), peer, NOW)
    admissions = Admissions(book, Path("none"))
    network: Any = Network(admissions, Decisions(admissions, lambda message: None, lambda event: None))
    return Members(network, me, cast("ContributorRoll", chain), b"", str), chain


@pytest.fixture(scope="module")
def me(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create(tmp_path_factory.mktemp("identity") / "identity.key")


def test_vote_on_a_branch_that_was_dropped_is_given_again_at_a_lower_height(me: Identity) -> None:
    members, chain = made(me, [(me.peer_id, X)] * 30)
    assert "has voted to evict X: 1 of 2 needed votes" in members.vote_eviction(X)
    chain.branch, chain.groups = "other", chain.groups[:25]
    assert "has voted to evict X: 1 of 2 needed votes" in members.vote_eviction(X)
    assert "had voted already" in members.vote_eviction(X)


def test_vote_that_is_not_taken_up_is_refused_with_the_reason(me: Identity) -> None:
    members, _ = made(me, [(me.peer_id, X)] * 30, is_in_time=lambda peer: False)
    with pytest.raises(CommandRefused, match=f"not taken up: this site has votes on {VOTES_OF_ONE_MAX} undecided"):
        members.vote_eviction(X)


def test_vote_for_a_false_result_stands_when_that_entry_is_taken_back(me: Identity) -> None:
    members, chain = made(me, [(me.peer_id, X)] * 30)
    assert "1 of 2 needed votes" in members.vote_against(X, RoundIndex(27))
    (found,) = members.swarm.admissions.book.votes()  # type: ignore[union-attr]
    assert [vote.height for vote in found.votes] == [22], "where a fork of a few entries leaves it standing"
    chain.groups = chain.groups[:12]
    assert "1 of 2 needed votes" in members.vote_against(X, RoundIndex(11))
    (found,) = members.swarm.admissions.book.votes()  # type: ignore[union-attr]
    assert [vote.height for vote in found.votes] == [4]


def test_vote_for_a_false_result_in_a_young_run_names_the_state_before_it(me: Identity) -> None:
    members, _ = made(me, [(me.peer_id, X)] * 6)
    members.vote_against(X, RoundIndex(3))
    (found,) = members.swarm.admissions.book.votes()  # type: ignore[union-attr]
    assert [vote.height for vote in found.votes] == [3]


def test_vote_for_a_false_result_stands_where_entries_below_it_are_taken_back_too(me: Identity) -> None:
    """The sum took long, and the chain is shorter by then than where that entry stood."""
    members, chain = made(me, [(me.peer_id, X)] * 30)
    chain.groups = chain.groups[:25]
    assert "1 of 2 needed votes" in members.vote_against(X, RoundIndex(27))
    (found,) = members.swarm.admissions.book.votes()  # type: ignore[union-attr]
    assert [vote.height for vote in found.votes] == [17]
    chain.groups = chain.groups[:5]
    assert "1 of 2 needed votes" in members.vote_against(X, RoundIndex(27))
    (found,) = members.swarm.admissions.book.votes()  # type: ignore[union-attr]
    assert [vote.height for vote in found.votes] == [5], "as high as the chain is"


def test_vote_for_a_false_result_that_would_count_nowhere_is_refused(me: Identity) -> None:
    members, _ = made(me, [(me.peer_id,)] * 6 + [(me.peer_id, X)])
    with pytest.raises(CommandRefused, match="had no part in the run"):
        members.vote_against(X, RoundIndex(6))
    with pytest.raises(CommandRefused, match="is no member of the run any more"):
        members.vote_against(PeerId("gone"), RoundIndex(6))
    members.swarm.admissions = None
    with pytest.raises(CommandRefused, match="asks for no invites"):
        members.vote_against(X, RoundIndex(6))
