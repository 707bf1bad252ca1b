"""The fast encoders write the bytes of plain ones: every value is chosen on purpose, so every bit is compared.

Each test runs with the compiled loops and with torch alone.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dilocoxd.compress import loops
from dilocoxd.compress.codec import Codec, NotEncodableError
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.twobit import Int2
from tests.reference.powers_and_bins import bins_payload, e3m0_payload, e3m0_values
from tests.reference.top_k import topk_payload, topk_values
from tests.reference.two_bits import int2_payload, int2_values

LENGTHS = (1, 2, 3, 5, 15, 16, 17, 127, 129, 1023, 1025, 4093, 4095, 4096, 4097, 8190, 9001, 20_481)
TINY = (0.0, -0.0, 1e-45, -1e-45, 2.0**-126, -(2.0**-126))
EDGE = (*TINY, 2.0**-64, -(2.0**-65), 2.0**-40, 0.5, -0.5, 1.0, -1.0, 2.0**64)


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    assert loops.found, "the package was built without a C compiler; install one and run make"
    if request.param == "torch":
        monkeypatch.setattr(loops, "found", None)
    return str(request.param)


def vectors(numel: int, seed: int) -> list[Tensor]:
    """Gaussian ones of several sizes, heavy tails, two equal magnitudes, zeros in places, and nothing but edges."""
    rng = torch.Generator().manual_seed(seed)
    normal = torch.randn(numel, generator=rng)
    signs = torch.where(normal >= 0, 1.0, -1.0)
    edges = torch.tensor(EDGE)
    return [
        normal * 1e-3,
        normal.pow(9),
        normal * 2.0**-140,
        normal * 2.0**-66,
        signs * 0.75,
        signs.abs().neg(),
        torch.where(normal > 1.0, normal, 0.0),
        edges[torch.randint(len(EDGE), (numel,), generator=rng)],
        edges[torch.randint(len(EDGE) - 1, (numel,), generator=rng)],
        edges[torch.randint(len(TINY), (numel,), generator=rng)],
        torch.zeros(numel),
        torch.full((numel,), -0.0),
    ]


def payload_of(codec: Codec, values: Tensor) -> bytes:
    payload = bytearray(codec.payload_bytes(values.numel()))
    codec.encode(values, payload)
    return bytes(payload)


def decoded(codec: Codec, payload: bytes, numel: int) -> Tensor:
    out = torch.full((numel,), float("nan"))
    codec.decode(payload, out)
    return out.view(torch.int32)


@pytest.mark.parametrize("block", [16, 32, 64, 128, 256, 1024, 4096])
def test_int2_writes_and_reads_the_bits_of_the_plain_reference(block: int) -> None:
    codec = codec_from_name("int2", block=block)
    for numel in LENGTHS:
        for index, values in enumerate(vectors(numel, seed=numel)):
            before = values.clone()
            payload = payload_of(codec, values)
            assert payload == int2_payload(values, block), (numel, index)
            assert torch.equal(values.view(torch.int32), before.view(torch.int32)), "the values are not written to"
            if index < 2:
                expected = int2_values(payload, numel, block).view(torch.int32)
                assert torch.equal(decoded(codec, payload, numel), expected), (numel, index)


@pytest.mark.parametrize("excess", [0, 1, 129, 4099])
def test_int2_of_several_chunks_is_that_of_its_values(excess: int) -> None:
    codec = codec_from_name("int2")
    for values in vectors(2 * Int2.chunk + excess, seed=excess)[:7:3]:
        assert payload_of(codec, values) == int2_payload(values, 128)


def test_what_a_codec_kept_from_other_lengths_does_not_show() -> None:
    first, second = torch.randn(Int2.chunk), torch.randn(300)
    for block in (128, 64, 128):
        codec = codec_from_name("int2", block=block)
        for values in (first, second, first):
            assert payload_of(codec, values) == int2_payload(values, block)


@pytest.mark.parametrize("block", [16, 128, 4096])
def test_e3m0_writes_and_reads_the_bits_of_the_plain_reference(block: int) -> None:
    codec = codec_from_name("e3m0", block=block)
    for numel in LENGTHS if block == 128 else (1, 17, 4097, 9001):
        for index, values in enumerate([*vectors(numel, seed=numel), between_powers(numel)]):
            before = values.clone()
            payload = payload_of(codec, values)
            assert payload == e3m0_payload(values, block), (numel, index)
            assert torch.equal(values.view(torch.int32), before.view(torch.int32)), "the values are not written to"
            expected = e3m0_values(payload, numel, block).view(torch.int32)
            assert torch.equal(decoded(codec, payload, numel), expected), (numel, index)


def between_powers(numel: int) -> Tensor:
    """Numbers on both sides of every bound between two levels, of both signs."""
    rng = torch.Generator().manual_seed(numel)
    mantissas = torch.tensor([1.0, 1.0 + 2.0**-23, 1.5 - 2.0**-23, 1.5, 1.5 + 2.0**-23, 2.0 - 2.0**-23])
    exponents = torch.randint(-10, 1, (numel,), generator=rng).float()
    signs = torch.randint(0, 2, (numel,), generator=rng).float() * 2.0 - 1.0
    return signs * 2.0**exponents * mantissas[torch.randint(len(mantissas), (numel,), generator=rng)]


def test_all_codes_of_e3m0_are_read_as_the_plain_reference_reads_them() -> None:
    codes = bytes(range(256))
    payload = bytes([3, 192, 129, 64]) + codes
    expected = e3m0_values(payload, 512, 128).view(torch.int32)
    assert torch.equal(decoded(codec_from_name("e3m0"), payload, 512), expected)


def test_int8bins_writes_the_bytes_of_the_plain_reference() -> None:
    codec = codec_from_name("int8bins")
    for numel in (1, 2, 17, 4097, 131_075):
        for index, values in enumerate(vectors(numel, seed=numel)[:: 1 if numel < 5000 else 4]):
            before = values.clone()
            assert payload_of(codec, values) == bins_payload(values), (numel, index)
            assert torch.equal(values.view(torch.int32), before.view(torch.int32)), "the values are not written to"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 2.0**65, -(2.0**65)])
@pytest.mark.parametrize("name", ["e3m0", "int8bins"])
def test_one_bad_value_is_not_encodable(name: str, bad: float) -> None:
    values = torch.linspace(-1.0, 1.0, 301)
    values[150] = bad
    with pytest.raises(NotEncodableError):
        payload_of(codec_from_name(name), values)


@pytest.mark.parametrize("form", ["2bit", "fp32"])
@pytest.mark.parametrize("k", [2, 6, 64, 66, 258, 512, 514, 4096])
def test_topk_writes_and_reads_the_bits_of_the_plain_reference(k: int, form: str) -> None:
    codec = codec_from_name("topk", k=k, values=form)
    for numel in (1, 4095, 4096, 9001, 20_481) if k <= 64 else (9001,):
        for index, values in enumerate([*vectors(numel, seed=numel + k), *crowded(numel)]):
            payload = payload_of(codec, values)
            assert payload == topk_payload(values, k, form), (numel, index)
            if index < 2:
                expected = topk_values(payload, numel, k, form).view(torch.int32)
                assert torch.equal(decoded(codec, payload, numel), expected), (numel, index)


def crowded(numel: int) -> list[Tensor]:
    """The largest values side by side, ascending, in few groups, and every second row without any."""
    rng = torch.Generator().manual_seed(numel)
    places = torch.arange(numel)
    normal = torch.randn(numel, generator=rng)
    return [
        torch.where(places % 4096 < 70, normal * 100, normal),
        places.float(),
        torch.where(places % 256 < 3, normal * 100, normal),
        torch.where(places // 4096 % 2 == 0, normal, 0.0),
        normal.mul(8).round(),
        normal.bfloat16().float(),
    ]
