"""Frames survive any cut of the stream, and nothing but WireError comes out of bytes that are not frames."""

import contextlib

import pytest
from hypothesis import given, strategies as st

from dilocoxd.errors import WireError
from dilocoxd.wire import frames
from dilocoxd.wire.frames import FrameKind, decode_prelude, encode
from tests.reference.frame_decoder import FrameDecoder

SMALL_KINDS = [kind for kind in FrameKind if frames.PAYLOAD_BYTES_MAX[kind] >= 1024]
ANY_FRAME = st.tuples(st.sampled_from(SMALL_KINDS), st.binary(max_size=1024))


@given(st.lists(ANY_FRAME, max_size=5), st.lists(st.integers(1, 97), min_size=1, max_size=20))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    wanted: list[tuple[FrameKind, bytes]], cuts: list[int]
) -> None:
    data = b"".join(encode(kind, payload) for kind, payload in wanted)
    decoder, found, position, turn = FrameDecoder(), [], 0, 0
    while position < len(data):
        step = cuts[turn % len(cuts)]
        found += [(frame.kind, frame.payload) for frame in decoder.feed(data[position : position + step])]
        position, turn = position + step, turn + 1
    decoder.finish()
    assert found == wanted


@given(st.binary(max_size=400))
def test_garbage_raises_nothing_but_wire_error_and_is_not_kept(data: bytes) -> None:
    decoder = FrameDecoder()
    with contextlib.suppress(WireError):
        list(decoder.feed(data))
        decoder.finish()
    assert decoder.buffered_bytes <= len(data)


@given(ANY_FRAME, st.data())
def test_one_flipped_bit_anywhere_is_noticed(frame: tuple[FrameKind, bytes], data: st.DataObject) -> None:
    encoded = bytearray(encode(*frame))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    decoder = FrameDecoder()
    with pytest.raises(WireError):
        list(decoder.feed(bytes(encoded)))
        decoder.finish()


@given(ANY_FRAME, st.data())
def test_a_stream_that_ends_inside_a_frame_is_truncated(frame: tuple[FrameKind, bytes], data: st.DataObject) -> None:
    encoded = encode(*frame)
    decoder = FrameDecoder()
    assert list(decoder.feed(encoded[: data.draw(st.integers(1, len(encoded) - 1))])) == []
    with pytest.raises(WireError, match="truncated"):
        decoder.finish()


@pytest.mark.parametrize("kind", list(FrameKind))
def test_announced_length_above_the_cap_is_refused_before_any_payload(kind: FrameKind) -> None:
    head = frames._HEAD.pack(frames.MAGIC, frames.FRAME_VERSION, kind, frames.PAYLOAD_BYTES_MAX[kind] + 1)
    with pytest.raises(WireError) as refused:
        list(FrameDecoder().feed(head + bytes(32)))
    assert refused.value.code == "too_large"


def test_we_never_write_a_frame_that_others_must_refuse() -> None:
    with pytest.raises(WireError, match="too_large"):
        encode(FrameKind.RECEIPT, b"12")


@pytest.mark.parametrize(
    ("position", "value", "code"), [(0, 0, "frame_magic"), (2, 9, "frame_version"), (3, 200, "frame_kind")]
)
def test_prelude_errors_have_names(position: int, value: int, code: str) -> None:
    data = bytearray(encode(FrameKind.HELLO, b"x")[: frames.PRELUDE_BYTES])
    data[position] = value
    with pytest.raises(WireError) as refused:
        decode_prelude(bytes(data))
    assert refused.value.code == code


def test_piece_header_round_trips_and_short_pieces_are_refused() -> None:
    index, data = frames.split_piece(frames.encode_piece_header(7) + b"abc")
    assert (index, bytes(data)) == (7, b"abc")
    with pytest.raises(WireError, match="truncated"):
        frames.split_piece(b"1234567")
