"""Every wire codec keeps its contract: length formula, error bound, zero, idempotence, refusal of bad values
(ALGORITHMS I10)."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from dilocoxd.compress.codec import CHUNK, Codec, NotEncodableError
from dilocoxd.compress.registry import codec_from_name, codec_names
from dilocoxd.errors import ConfigError, WireError
from tests.unit.compress.cases import UNIFORM, VARIANTS, make, relative_error

ALL = pytest.mark.parametrize("label", list(VARIANTS))
LENGTHS = (1, 2, 15, 127, 128, 129, 4095, 4096, 4097, 9001, CHUNK + 4099)
ROUNDING_SLACK = 1e-5
"""Relative: the products in encoder and decoder round once each (2**-24)."""


def roundtrip(codec: Codec, values: Tensor) -> Tensor:
    payload = bytearray(codec.payload_bytes(values.numel()))
    codec.encode(values, payload)
    out = torch.full_like(values, float("nan"))
    codec.decode(bytes(payload), out)
    return out


def gaussian(numel: int, seed: int = 0, scale: float = 1e-3) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("label", UNIFORM)
@pytest.mark.parametrize("numel", LENGTHS)
def test_error_of_each_value_is_within_half_a_step(label: str, numel: int) -> None:
    codec = make(label)
    values = gaussian(numel, seed=numel)
    error = (roundtrip(codec, values) - values).abs()
    options = VARIANTS[label]
    if codec.name == "fp32":
        assert error.amax() == 0
    elif codec.name in {"fp16", "bf16"}:
        half_ulp = 2.0**-11 if codec.name == "fp16" else 2.0**-8
        assert bool((error <= values.abs() * half_ulp + 2.0**-25).all())
    else:
        block = int(str(options.get("block", 128 if codec.name == "int4" else 256)))
        levels = 7 if codec.name == "int4" else 127
        coarser = {"pow2": 2.0, "short": 1.125}.get(str(options.get("scale")), 1.0 + 2.0**-8)
        for start in range(0, numel, block):
            step = float(values[start : start + block].abs().amax()) / levels * coarser
            assert float(error[start : start + block].amax()) <= step / 2 * (1 + ROUNDING_SLACK)


@ALL
@pytest.mark.parametrize("numel", LENGTHS)
def test_zero_decodes_to_zero_and_length_is_the_formula(label: str, numel: int) -> None:
    codec = make(label)
    assert bool((roundtrip(codec, torch.zeros(numel)) == 0).all())
    for wrong in (codec.payload_bytes(numel) - 1, codec.payload_bytes(numel) + 1):
        with pytest.raises(WireError, match="bad_payload"):
            codec.decode(bytes(wrong), torch.empty(numel))
        with pytest.raises(ValueError, match="buffer of"):
            codec.encode(torch.zeros(numel), bytearray(wrong))


def test_length_formulas_by_hand() -> None:
    assert codec_from_name("fp32").payload_bytes(1000) == 4000
    assert codec_from_name("fp16").payload_bytes(1000) == 2000
    assert codec_from_name("int8").payload_bytes(1000) == 4 * 4 + 1000
    assert codec_from_name("int4").payload_bytes(1000) == 8 * 2 + 500
    assert codec_from_name("int4", scale="pow2").payload_bytes(1001) == 8 + 501
    assert codec_from_name("int4").payload_bytes(1 << 20) == (1 << 20) * 4.125 / 8


@ALL
def test_encoding_a_decoded_payload_again_gives_the_same_values(label: str) -> None:
    codec = make(label)
    once = roundtrip(codec, gaussian(CHUNK + 5000))
    if "scale=pow2" in label or codec.name in {"fp32", "fp16", "bf16", "e3m0"} or "values=fp32" in label:
        assert torch.equal(roundtrip(codec, once), once)
    elif codec.name == "int2":
        assert float((roundtrip(codec, once) - once).norm() / once.norm()) < 0.2, "a few blocks choose other levels"
    else:
        rounding_of_the_scale = 2.0**-7 if "short" not in label else 0.126
        torch.testing.assert_close(roundtrip(codec, once), once, rtol=rounding_of_the_scale, atol=0.0)


@ALL
def test_compression_contracts_random_vectors(label: str) -> None:
    codec = make(label)
    values = gaussian(20_480, seed=3)
    assert float((roundtrip(codec, values) - values).norm() / values.norm()) <= relative_error(codec, label)
    for sparse in (torch.zeros(4096).index_fill(0, torch.tensor([77]), -3.0), (values * 1e3) ** 5):
        assert float((roundtrip(codec, sparse) - sparse).norm()) < float(sparse.norm()) or codec.name == "fp32"


@ALL
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2.0**65, -(2.0**65)])
@pytest.mark.parametrize("position", [0, 4100, CHUNK + 3])
def test_values_that_are_not_finite_or_huge_are_refused(label: str, bad: float, position: int) -> None:
    codec = make(label)
    values = gaussian(CHUNK + 5)
    values[position] = bad
    with pytest.raises(NotEncodableError):
        codec.encode(values, bytearray(codec.payload_bytes(values.numel())))


@ALL
@pytest.mark.parametrize("scale", [2.0**64, 1e-3, 1e-17, 1e-30, 1e-44])
def test_extreme_magnitudes_stay_in_range(label: str, scale: float) -> None:
    values = torch.tensor([1.0, -1.0, 0.5, -0.25, 0.0]).repeat(100).mul(scale)
    decoded = roundtrip(make(label), values)
    assert bool((decoded.abs() <= 2.0**64).all())
    limit = float(values.abs().amax())
    assert float((decoded - values).abs().amax()) <= limit


@ALL
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_bytes_decode_or_raise_wire_error(label: str, data: st.DataObject) -> None:
    codec = make(label)
    numel = data.draw(st.integers(1, 300))
    size = codec.payload_bytes(numel)
    payload = data.draw(st.one_of(st.binary(min_size=size, max_size=size), st.binary(max_size=3 * size)))
    out = torch.empty(numel)
    try:
        codec.decode(payload, out)
    except WireError as error:
        assert error.code == "bad_payload"
    else:
        assert len(payload) == size
        assert bool((out.abs() <= 2.0**71).all())


@ALL
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_finite_values_roundtrip_without_growing(label: str, data: st.DataObject) -> None:
    floats = st.floats(-(2.0**64), 2.0**64, width=32)
    values = torch.tensor(data.draw(st.lists(floats, min_size=1, max_size=200)), dtype=torch.float32)
    decoded = roundtrip(make(label), values)
    assert bool(torch.isfinite(decoded).all())
    assert float((decoded.double() - values.double()).abs().amax()) <= float(values.abs().amax())


@pytest.mark.parametrize(
    ("label", "bad_scale"),
    [
        ("int8", struct.pack("<f", float("nan"))),
        ("int8", struct.pack("<f", float("inf"))),
        ("int8", struct.pack("<f", -1.0)),
        ("int8", struct.pack("<f", 2.0**-65)),
        ("int8", struct.pack("<f", 2.0**65)),
        ("int4", struct.pack("<f", float("nan"))[2:]),
        ("int4", struct.pack("<f", -2.0)[2:]),
        ("int4 scale=pow2", b"\x41"),
        ("int4 scale=pow2", b"\x80"),
        ("int4 scale=pow2", b"\xbf"),
    ],
)
def test_hostile_scales_are_refused(label: str, bad_scale: bytes) -> None:
    codec = make(label)
    payload = bytearray(codec.payload_bytes(300))
    payload[: len(bad_scale)] = bad_scale
    with pytest.raises(WireError, match="scale"):
        codec.decode(payload, torch.empty(300))


@pytest.mark.parametrize(("label", "size"), [("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_float_payloads_with_nan_or_inf_are_refused(label: str, size: int) -> None:
    codec = make(label)
    for bits in (0x7F800000, 0xFF800000, 0x7FC00000) if label != "fp16" else (0x7C000000, 0xFC000000, 0x7E000000):
        payload = bytearray(codec.payload_bytes(9))
        payload[size : 2 * size] = struct.pack("<I", bits)[4 - size :]
        with pytest.raises(WireError):
            codec.decode(payload, torch.empty(9))


def test_int4_layout_by_hand() -> None:
    """Three values: one bf16 scale 1.0 (0x3f80), then low nibbles = first half (2 values), high = the rest."""
    payload = bytearray(codec_from_name("int4").payload_bytes(3))
    codec_from_name("int4").encode(torch.tensor([7.0, -7.0, 3.0]), payload)
    assert payload == bytes([0x80, 0x3F, (3 + 8) << 4 | (7 + 8), 8 << 4 | (-7 + 8)])


def test_int8_layout_by_hand() -> None:
    payload = bytearray(codec_from_name("int8").payload_bytes(2))
    codec_from_name("int8").encode(torch.tensor([127.0, -64.0]), payload)
    assert payload == struct.pack("<fbb", 1.0, 127, -64)


def test_buffers_of_any_alignment_and_kind_are_accepted() -> None:
    values = gaussian(5000)
    for label in VARIANTS:
        codec = make(label)
        size = codec.payload_bytes(5000)
        expected = bytearray(size)
        codec.encode(values, expected)
        shared = torch.zeros(size + 3, dtype=torch.uint8)
        codec.encode(values, shared[3:])
        assert bytes(shared[3:].numpy()) == bytes(expected)
        out = torch.empty(5000)
        codec.decode(shared[3:], out)
        assert torch.equal(out, roundtrip(codec, values))


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_stochastic_rounding_has_no_bias_and_stays_within_a_step(name: str) -> None:
    codec = codec_from_name(name, rounding="stochastic")
    levels = 7 if name == "int4" else 127
    values = torch.full((1 << 18,), 0.3 / levels)
    values[::128] = 1.0
    decoded = roundtrip(codec, values)
    assert torch.equal(decoded, roundtrip(codec, values))
    assert float((decoded - values).abs().amax()) <= 1.01 / levels
    small = values < 1
    assert set((decoded[small] * levels).round().tolist()) == {0.0, 1.0}
    assert float(decoded[small].mean()) * levels == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("int5", {}, "unknown"),
        ("int4", {"blok": 3}, "does not take"),
        ("int4", {"block": 100}, "power of two"),
        ("int8", {"block": 8192}, "power of two"),
        ("int8", {"scale": "fp64"}, "scale"),
        ("int8", {"rounding": "up"}, "rounding"),
        ("topk", {"k": 3}, "even"),
        ("topk", {"values": "fp16"}, "2bit or fp32"),
        ("e3m0", {"block": 7}, "power of two"),
    ],
)
def test_bad_names_and_options_are_config_errors(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        codec_from_name(name, **options)


def test_every_name_has_a_variant_under_test() -> None:
    assert {label.split()[0] for label in VARIANTS} == set(codec_names())
