"""protocol/vectors/encoding.json against the implementation (protocol E1, E2, E3, E4, E5, E6)."""

from __future__ import annotations

from typing import Any

import pytest

from dilocoxd.errors import WireError
from dilocoxd.wire.codec import _flatten
from dilocoxd.wire.messages import PEER_MESSAGES
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
