"""protocol/vectors/encoding.json against the implementation (protocol E1, E2, E3, E4, E5, E6, L20, S12)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dilocoxd.daemon.peers.port_book import PortBook
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.wire.codec import _flatten
from dilocoxd.wire.messages import PEER_MESSAGES
from dilocoxd.wire.records import (
    MICRO,
    PHASE_LOSSES_BYTES_MAX,
    PHASES_MAX,
    PhaseLoss,
    PhaseLosses,
    decode_phase_losses,
    encode_phase_losses,
)
from tests.conformance.vectors import from_json, loaded

LOADED: dict[str, Any] = loaded("encoding")


def label(row: dict[str, Any]) -> str:
    return f"{row.get('message', 'bytes')}-{row.get('broken', len(row['bytes']))}".replace(" ", "_")


@pytest.mark.parametrize("row", LOADED["valid"], ids=label)
def test_message_decodes_to_its_fields_and_encodes_to_its_bytes(row: dict[str, Any]) -> None:
    message = PEER_MESSAGES.decode(bytes.fromhex(row["bytes"]))
    assert type(message).__name__ == row["message"]
    assert _flatten(message) == from_json(row["fields"])
    assert PEER_MESSAGES.encode(message).hex() == row["bytes"]


@pytest.mark.parametrize("row", LOADED["failing"], ids=label)
def test_broken_message_is_refused_with_its_code(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        PEER_MESSAGES.decode(bytes.fromhex(row["bytes"]))
    assert caught.value.code == row["code"]


@pytest.mark.parametrize("data", LOADED["ignored"])
def test_unknown_optional_message_is_ignored(data: str) -> None:
    assert PEER_MESSAGES.decode(bytes.fromhex(data)) is None


def test_message_above_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(WireError) as caught:
        PEER_MESSAGES.decode(b"\xff" * (PEER_MESSAGES.size_max + 1))
    assert caught.value.code == "too_large"


def test_every_message_has_vectors_of_both_kinds() -> None:
    names = {kind.__name__ for kind in PEER_MESSAGES.by_type}
    assert {row["message"] for row in LOADED["valid"]} == names
    assert {row["message"] for row in LOADED["failing"] if "message" in row} == names


@pytest.mark.parametrize("row", LOADED["losses"], ids=lambda row: f"{len(row['pairs'])}-from-{row['first']}")
def test_losses_decode_to_their_pairs_and_encode_to_their_bytes(row: dict[str, Any]) -> None:
    data, pairs = bytes.fromhex(row["bytes"]), row["pairs"]
    assert decode_phase_losses(data, row["first"]) == tuple(PhaseLoss(*pair) for pair in pairs)
    assert encode_phase_losses({phase: micro / MICRO for phase, micro in pairs}, row["first"]) == data


@pytest.mark.parametrize("row", LOADED["broken_losses"], ids=lambda row: row["broken"].replace(" ", "_"))
def test_broken_losses_are_refused_with_their_code(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        decode_phase_losses(bytes.fromhex(row["bytes"]), row["first"])
    assert caught.value.code == row["code"]


@pytest.mark.parametrize("data", LOADED["ports"])
def test_ports_of_nodes_are_taken(data: str) -> None:
    book, peer = PortBook(), PeerId("peer")
    said = PEER_MESSAGES.decode(bytes.fromhex(data))
    book.take(peer, said)
    assert list(book.all().values()) == list(said.ports)


@pytest.mark.parametrize("row", LOADED["broken_ports"], ids=lambda row: row["broken"].replace(" ", "_"))
def test_broken_ports_of_nodes_are_refused_and_those_before_them_count_no_more(row: dict[str, Any]) -> None:
    book, peer = PortBook(), PeerId("peer")
    book.take(peer, PEER_MESSAGES.decode(bytes.fromhex(LOADED["ports"][-1])))
    with pytest.raises(WireError) as caught:
        book.take(peer, PEER_MESSAGES.decode(bytes.fromhex(row["bytes"])))
    assert caught.value.code == "malformed" and not book.all()


def test_only_losses_that_can_be_told_are_told_and_the_longest_answer_fits() -> None:
    known = {9: 2.5, 4: 3.0, 5: math.nan, 6: math.inf, 7: -1.0, 8: 1000.1, 3: 4.0}
    told = decode_phase_losses(encode_phase_losses(known, 4), 4)
    assert [(item.phase, item.loss) for item in told] == [(4, 3.0), (9, 2.5)]
    longest = encode_phase_losses({2**63 - 1 - n: 1000.0 for n in range(2 * PHASES_MAX)}, 0)
    assert len(longest) <= PHASE_LOSSES_BYTES_MAX and len(decode_phase_losses(longest, 0)) == PHASES_MAX
    assert PhaseLosses(()).items == ()
