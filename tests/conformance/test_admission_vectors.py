"""protocol/vectors/admission.json against the implementation (protocol M1 to M4, M6 to M9)."""

from __future__ import annotations

from typing import Any

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.authority_book import AuthorityBook
from dilocoxd.machines.admission.certificates import Authorities, admit, check_membership, check_revocation
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.swarm.discovery.identity import is_signed_by
from dilocoxd.wire.admission import decode_membership, decode_revocation
from dilocoxd.wire.authorities import decode_change, pack_changes, unpack_changes
from dilocoxd.wire.codec import _flatten, encode_struct
from dilocoxd.wire.join_link import read_link
from tests.conformance.vectors import from_json, loaded

LOADED: dict[str, Any] = loaded("admission")
PEER = PeerId(LOADED["peer"])
AUTHORITIES = Authorities(
    bytes.fromhex(LOADED["run"]), tuple(map(bytes.fromhex, LOADED["authorities"])), LOADED["threshold"]
)


def label(row: dict[str, Any]) -> str:
    return str(row["broken"]).replace(" ", "_")


@pytest.mark.parametrize("row", LOADED["seeds"], ids=lambda row: row["public"][:8])
def test_public_key_follows_from_the_seed(row: dict[str, str]) -> None:
    assert SigningKey(bytes.fromhex(row["seed"])).public.hex() == row["public"]


@pytest.mark.parametrize("row", LOADED["memberships"], ids=lambda row: row["bytes"][-8:])
def test_membership_proves_its_peer_and_encodes_to_its_bytes(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["bytes"])
    membership = decode_membership(data)
    assert _flatten(membership) == from_json(row["fields"])
    assert encode_struct(membership) == data
    assert len(data) <= 512
    check_membership(membership, membership.peer, AUTHORITIES)
    invite = SigningKey(bytes.fromhex(LOADED["seeds"][-1]["seed"]))
    assert admit(membership.certificate, invite, membership.peer) == membership


@pytest.mark.parametrize("row", LOADED["broken_memberships"], ids=label)
def test_broken_membership_is_refused_with_its_code(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        check_membership(decode_membership(bytes.fromhex(row["bytes"])), PEER, AUTHORITIES)
    assert caught.value.code == row["code"]


@pytest.mark.parametrize("row", LOADED["revocations"], ids=lambda row: row["bytes"][-8:])
def test_revocation_is_signed_by_its_authorities(row: dict[str, Any]) -> None:
    revocation = decode_revocation(bytes.fromhex(row["bytes"]))
    assert _flatten(revocation) == from_json(row["fields"])
    assert encode_struct(revocation).hex() == row["bytes"]
    check_revocation(revocation, (AUTHORITIES,))


@pytest.mark.parametrize("row", LOADED["broken_revocations"], ids=label)
def test_broken_revocation_is_refused_with_its_code(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        check_revocation(decode_revocation(bytes.fromhex(row["bytes"])), (AUTHORITIES,))
    assert caught.value.code == row["code"]


@pytest.mark.parametrize("row", LOADED["votes"], ids=lambda row: row["bytes"][-8:])
def test_votes_on_an_eviction_are_signed_by_their_voters(row: dict[str, Any]) -> None:
    revocation = decode_revocation(bytes.fromhex(row["bytes"]))
    assert _flatten(revocation) == from_json(row["fields"])
    assert encode_struct(revocation).hex() == row["bytes"]
    book = AdmissionBook(AUTHORITIES, verify=is_signed_by)
    book.recall_votes(revocation)
    assert book.votes() == (revocation,)


@pytest.mark.parametrize("row", LOADED["broken_votes"], ids=label)
def test_broken_vote_is_refused_with_its_code(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        AdmissionBook(AUTHORITIES, verify=is_signed_by).check_votes(decode_revocation(bytes.fromhex(row["bytes"])))
    assert caught.value.code == row["code"]


def book() -> AuthorityBook:
    return AuthorityBook(AUTHORITIES, is_signed_by, lambda voter: True, lambda peer: True)


@pytest.mark.parametrize("row", LOADED["changes"], ids=lambda row: row["bytes"][-8:])
def test_change_of_the_authorities_is_signed_or_voted(row: dict[str, Any]) -> None:
    change = decode_change(bytes.fromhex(row["bytes"]))
    assert _flatten(change) == from_json(row["fields"])
    assert encode_struct(change).hex() == row["bytes"]
    found = book()
    found.recall(change)
    assert found.known() == (change,)
    assert found.now.keys == change.terms.keys
    assert unpack_changes(pack_changes([change])) == [change]


@pytest.mark.parametrize("row", LOADED["broken_changes"], ids=label)
def test_broken_change_of_the_authorities_is_refused_with_its_code(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        book().recall(decode_change(bytes.fromhex(row["bytes"])))
    assert caught.value.code == row["code"]


@pytest.mark.parametrize("row", LOADED["links"], ids=lambda row: row["link"][:12])
def test_link_is_read_and_written(row: dict[str, Any]) -> None:
    link = read_link(row["link"])
    assert link.to_text() == row["link"]
    assert link.run == AUTHORITIES.run and link.head == bytes(range(32))
    assert (link.invite is not None) == row["has_invite"]
    if link.invite is not None:
        invite = SigningKey(link.invite.seed)
        check_membership(admit(link.invite.certificate(link.run, invite.public), invite, PEER), PEER, AUTHORITIES)


@pytest.mark.parametrize("row", LOADED["broken_links"], ids=label)
def test_broken_link_is_refused_in_one_sentence(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        read_link(row["link"])
    assert str(caught.value) and "\n" not in str(caught.value)
