"""What `dilocoxd authority rotate | vote | show` answer (daemon/peers/authorities.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dilocoxd.daemon.chain.contributors import ContributorRoll
from dilocoxd.daemon.peers.authorities import RunAuthorities
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.certificates import changed
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.swarm.discovery.decisions import Decisions
from dilocoxd.swarm.discovery.identity import Identity, load_or_create
from dilocoxd.wire.authorities import change_hash
from dilocoxd.wire.codec import encode_struct
from tests.unit.daemon.members.test_vote_command import Network
from tests.unit.machines.admission.chains import Chain
from tests.unit.machines.admission.test_authorities import FIRST, NEW, NEXT, OLD, THIEF, listed, terms_after, votes

B, C = PeerId("B"), PeerId("C")


@pytest.fixture(scope="module")
def me(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create(tmp_path_factory.mktemp("identity") / "identity.key")


def made(
    me: Identity, folder: Path, *others: PeerId, is_in_time: Callable[[PeerId], bool] = lambda peer: True
) -> tuple[RunAuthorities, Chain, list[Any]]:
    chain, told = Chain(["-"] * 30), []
    chain.of_entry = lambda index: (me.peer_id, *others)  # type: ignore[method-assign]
    chain.last_entry = lambda peer: chain.height - 1 if peer in (me.peer_id, *others) else None  # type: ignore
    book = AdmissionBook(FIRST, verify=lambda peer, signature, text: True, chain=chain, is_in_time=is_in_time)
    admissions = Admissions(book, folder / "members.json")
    network: Any = Network(admissions, Decisions(admissions, lambda message: None, told.append))
    return RunAuthorities(network, me, cast("ContributorRoll", chain)), chain, told


def test_vote_says_how_many_are_needed_and_what_the_others_run(me: Identity, tmp_path: Path) -> None:
    authorities, chain, events = made(me, tmp_path, B, C)
    terms = terms_after(FIRST, NEW)
    text = encode_struct(terms).hex()
    short = change_hash(terms).hex()[:12]
    told = authorities.vote(text)
    assert "1 of 2 needed votes" in told and told.endswith(f"dilocoxd authority vote RUN_DIR {short}")
    assert authorities.vote(text) == told, "a vote may be asked for again"
    assert [row.state for row in authorities.shown()] == ["in force", "voted on"]
    authorities.swarm.decisions.change_authorities(votes(terms, chain, "B"))
    assert [(row.state, row.decided_by) for row in authorities.shown()] == [
        ("earlier", "manifest"),
        ("in force", "members"),
    ]
    assert [type(event).__name__ for event in events] == ["AuthoritiesChanged", "AlertRaised"]
    assert (tmp_path / "members.json").exists()


def test_vote_that_cannot_count_is_refused_with_the_reason(me: Identity, tmp_path: Path) -> None:
    text = encode_struct(terms_after(FIRST, NEW)).hex()
    pair, _, _ = made(me, tmp_path, B)
    with pytest.raises(CommandRefused, match=r"fewer than 3 sites .* `dilocoxd start --from RUN_DIR`"):
        pair.vote(text)
    three, _, _ = made(me, tmp_path, B, C)
    with pytest.raises(CommandRefused, match="the list before it is not known"):
        three.vote(encode_struct(terms_after(listed(terms_after(FIRST, NEXT)), NEW)).hex())
    with pytest.raises(CommandRefused, match="no hex text"):
        three.vote("xy")
    with pytest.raises(CommandRefused, match="the list is not accepted"):
        three.vote("00")


def test_signed_change_is_taken_once_and_one_that_loses_says_so(me: Identity, tmp_path: Path) -> None:
    authorities, _, events = made(me, tmp_path, B, C)
    best, other = sorted(
        (changed(terms_after(FIRST, key), FIRST, {0: OLD}) for key in (NEW, NEXT)),
        key=lambda one: change_hash(one.terms),
    )
    assert "list 1 of the authorities is in force" in authorities.change(encode_struct(best).hex())
    assert "was known already" in authorities.change(encode_struct(best).hex())
    with pytest.raises(CommandRefused, match="another change with this number goes before it"):
        authorities.change(encode_struct(other).hex())
    assert "rival_authorities" in [getattr(event, "code", "") for event in events]
    forged = changed(terms_after(listed(best.terms), NEW), FIRST, {0: THIEF})
    with pytest.raises(CommandRefused, match="the change is not accepted"):
        authorities.change(encode_struct(forged).hex())


def test_show_tells_of_void_invites_and_lists_that_lost(me: Identity, tmp_path: Path) -> None:
    authorities, _, _ = made(me, tmp_path, B, C)
    for key in (SigningKey(b"1" * 32), SigningKey(b"2" * 32)):
        change = changed(terms_after(FIRST, key, void_from=20), FIRST, {0: OLD})
        authorities.swarm.decisions.change_authorities(change)
    rows = authorities.shown()
    assert (rows[0].state, rows[0].invites_void_from) == ("earlier", 20)
    assert sorted((row.state, row.invites_void_from) for row in rows[1:]) == [("in force", None), ("lost", 0)]


@pytest.mark.remedy("alert:rival_authorities", "alert:authorities_changed")
def test_members_vote_for_the_list_of_the_authorities_and_not_for_that_of_a_thief(me: Identity, tmp_path: Path) -> None:
    authorities, chain, events = made(me, tmp_path, B, C)
    assert authorities.swarm.admissions is not None
    book = authorities.swarm.admissions.book.authorities
    ours = terms_after(FIRST, NEW)
    keys = (SigningKey(bytes([number]) * 32) for number in range(1, 200))
    theirs = next(one for one in (terms_after(FIRST, key) for key in keys) if change_hash(one) < change_hash(ours))
    for terms in (ours, theirs):
        authorities.swarm.decisions.change_authorities(changed(terms, FIRST, {0: OLD}))
    assert book.now == listed(theirs), "the key is stolen, and the smaller hash was searched for"
    raised = [getattr(event, "code", "") for event in events]
    assert "authorities_changed" in raised and "rival_authorities" in raised
    row = next(row for row in authorities.shown() if row.state == "lost")
    assert "1 of 2 needed votes" in authorities.vote(row.terms)
    authorities.swarm.decisions.change_authorities(votes(ours, chain, "C"))
    assert book.now == listed(ours)
