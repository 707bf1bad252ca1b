"""protocol/vectors/frames.json against the implementation (protocol S1, S4, S5, S11.8)."""

from __future__ import annotations

from typing import Any

import pytest

from dilocoxd.errors import WireError
from dilocoxd.wire.frames import PAYLOAD_BYTES_MAX, PRELUDE_BYTES, FrameKind, encode_prelude
from tests.conformance.vectors import loaded
from tests.reference.frame_decoder import FrameDecoder

LOADED: dict[str, Any] = loaded("frames")


def decoded(row: dict[str, Any], cut: int) -> list[list[str]]:
    """Frames of a whole stream that arrives in chunks of `cut` bytes."""
    data = bytes.fromhex(row["bytes"])
    decoder, found = FrameDecoder(is_sealed="is_data" in row), []
    for start in range(0, len(data), cut):
        found += [[f.kind.name, f.payload.hex()] for f in decoder.feed(data[start : start + cut])]
    decoder.finish()
    return found


def encoded(row: dict[str, Any]) -> bytes:
    """What we write, to who takes pieces without a digest if the row is of a data connection."""
    found = b""
    for name, payload in row["frames"]:
        parts = (bytes.fromhex(payload),)
        found += encode_prelude(FrameKind[name], parts, is_digested=name != "PIECE" or "is_data" not in row) + parts[0]
    return found


@pytest.mark.parametrize("cut", [1, 7, PRELUDE_BYTES, 1 << 20])
@pytest.mark.parametrize("row", LOADED["valid"], ids=lambda row: "-".join(name for name, _ in row["frames"])[:40])
def test_stream_decodes_to_its_frames_however_it_is_cut(row: dict[str, Any], cut: int) -> None:
    assert decoded(row, cut) == row["frames"]
    assert encoded(row).hex() == row["bytes"]


@pytest.mark.parametrize("cut", [1, 7, PRELUDE_BYTES, 1 << 20])
@pytest.mark.parametrize("row", LOADED["failing"], ids=lambda row: row["broken"].replace(" ", "_"))
def test_broken_stream_is_refused_with_its_code(row: dict[str, Any], cut: int) -> None:
    with pytest.raises(WireError) as caught:
        decoded(row, cut)
    assert caught.value.code == row["code"]


def test_every_kind_has_vectors_of_both_kinds() -> None:
    names = {kind.name for kind in PAYLOAD_BYTES_MAX}
    assert {name for row in LOADED["valid"] for name, _ in row["frames"]} == names
    assert names <= {row["broken"].split()[0] for row in LOADED["failing"]}
