"""protocol/vectors/compression.json against the implementation (protocol C2, C3, C4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dilocoxd.compress.registry import codec_from_name, codec_names
from dilocoxd.errors import WireError
from tests.conformance.vectors import floats, loaded

LOADED: dict[str, list[dict[str, Any]]] = loaded("compression")


def label(row: dict[str, Any]) -> str:
    return f"{row['codec']}-{row['numel']}-{row.get('reason', 'valid')}".replace(" ", "_")


@pytest.mark.parametrize("row", LOADED["valid"], ids=label)
def test_payload_decodes_to_the_same_bits_and_encoder_makes_it(row: dict[str, Any]) -> None:
    codec = codec_from_name(row["codec"], **row["options"])
    payload = bytes.fromhex(row["payload"])
    assert codec.payload_bytes(row["numel"]) == len(payload)
    out = torch.empty(row["numel"])
    codec.decode(payload, out)
    assert torch.equal(out, floats(row["decoded"]))
    if "values" in row:
        made = bytearray(len(payload))
        codec.encode(floats(row["values"]), made)
        assert bytes(made) == payload


@pytest.mark.parametrize("row", LOADED["failing"], ids=label)
def test_failing_payload_is_refused(row: dict[str, Any]) -> None:
    codec = codec_from_name(row["codec"], **row["options"])
    with pytest.raises(WireError) as caught:
        codec.decode(bytes.fromhex(row["payload"]), torch.empty(row["numel"]))
    assert caught.value.code == "bad_payload"


def test_vectors_cover_every_codec_and_fail_at_least_as_often_as_they_pass() -> None:
    assert {row["codec"] for row in LOADED["valid"]} == set(codec_names())
    assert {row["codec"] for row in LOADED["failing"]} == set(codec_names())
    assert len(LOADED["failing"]) >= len(LOADED["valid"])
