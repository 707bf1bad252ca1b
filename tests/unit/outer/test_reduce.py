"""The owner's mean: order, weights, residual, blame for a share that does not decode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dilocoxd.compress.codec import CHUNK, Codec
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.outer.clipping import Weighing
from dilocoxd.outer.reduce import (
    BadShareError,
    reduce_in_chunks,
    settle_in_chunks_,
    weighted_mean_,
)
from dilocoxd.outer.rounding import age_factor, fp32, mean_weights
from tests.reference.whole_segments import reduce_segment, settle_residual_
from tests.unit.compress.cases import VARIANTS, make

ALL = pytest.mark.parametrize("label", list(VARIANTS))


def encoded(codec: Codec, values: Tensor) -> bytearray:
    payload = bytearray(codec.payload_bytes(values.numel()))
    codec.encode(values, payload)
    return payload


def gaussians(count: int, numel: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(numel, generator=generator) * 1e-3 for _ in range(count)]


def test_weights_are_token_shares_rounded_once() -> None:
    assert mean_weights([1, 1, 1, 1]) == [0.25] * 4
    assert mean_weights([1, 2]) == [fp32(1 / 3), fp32(2 / 3)]
    assert abs(sum(mean_weights([7, 11, 13, 1000003])) - 1) < 4 * 2.0**-25
    for bad in ([], [0], [3, -1]):
        with pytest.raises(ValueError, match="positive"):
            mean_weights(bad)


def test_late_shares_are_scaled_by_age_and_nobody_gains_from_it() -> None:
    assert age_factor(0, 0.5, 0) == age_factor(1, 0.5, 1) == age_factor(0, 0.5, 1) == 1.0
    assert age_factor(3, 0.5, 1) == 0.25
    assert age_factor(8, 1.0, 0) == 1.0
    assert mean_weights([150, 150], [1.0, 0.25]) == [0.5, 0.125]
    assert mean_weights([7], [0.5]) == [0.5], "a late site alone does not move the model all the way either"


@ALL
def test_mean_is_the_sum_of_separately_rounded_products_in_the_given_order(label: str) -> None:
    codec = make(label)
    numel = CHUNK + 4100
    shares = [encoded(codec, values) for values in gaussians(3, numel)]
    weights = mean_weights([3, 5, 9])
    mean = torch.empty(numel)
    weighted_mean_(codec, shares, weights, mean)
    expected = torch.zeros(numel)
    for share, weight in zip(shares, weights, strict=True):
        decoded = torch.empty(numel)
        codec.decode(share, decoded)
        expected = expected + decoded * torch.tensor(weight)
    assert torch.equal(mean, expected)


@ALL
@pytest.mark.parametrize("has_residual", [True, False])
def test_chunk_by_chunk_is_the_same(label: str, has_residual: bool) -> None:
    codec = make(label)
    numel = CHUNK + 4100
    shares = [bytes(encoded(codec, values)) for values in gaussians(3, numel)]
    weights = mean_weights([3, 5, 9])
    residual = gaussians(4, numel)[3] * 0.01 if has_residual else None
    whole, pieces = bytearray(codec.payload_bytes(numel)), bytearray(codec.payload_bytes(numel))
    reduce_segment(codec, shares, weights, residual, torch.empty(numel), whole)
    reduce_in_chunks(codec, shares, weights, residual, numel, pieces)
    assert pieces == whole


@ALL
def test_settled_chunk_by_chunk_the_residual_is_the_same(label: str) -> None:
    codec = make(label)
    numel = CHUNK + 4100
    shares = [bytes(encoded(codec, values)) for values in gaussians(3, numel)]
    weighing = Weighing(mean_weights([3, 5, 9]), (1.0, 0.5, 0.0))
    residual = gaussians(4, numel)[3] * 0.01
    result = bytearray(codec.payload_bytes(numel))
    reduce_in_chunks(codec, shares, weighing, residual, numel, result)
    whole = residual.clone()
    settle_residual_(codec, shares, weighing, whole, result)
    settle_in_chunks_(codec, shares, weighing, residual, result)
    assert torch.equal(residual, whole)


@ALL
def test_result_plus_residual_is_what_the_owner_wanted_to_send(label: str) -> None:
    codec = make(label)
    numel = 9000
    shares = [bytes(encoded(codec, values)) for values in gaussians(4, numel)]
    weights = mean_weights([1, 1, 1, 1])
    residual = gaussians(5, numel)[4] * 0.01
    before = residual.clone()
    values, result, again = (
        torch.empty(numel),
        bytearray(codec.payload_bytes(numel)),
        bytearray(codec.payload_bytes(numel)),
    )
    reduce_segment(codec, shares, weights, residual, values, result)
    reduce_segment(codec, shares, weights, residual, torch.empty(numel), again)
    assert torch.equal(residual, before), "a repeated attempt must see the same inputs"
    assert result == again
    settle_residual_(codec, shares, weights, residual, result)
    decoded = torch.empty(numel)
    codec.decode(result, decoded)
    torch.testing.assert_close(residual.double() + decoded.double(), values.double(), rtol=1e-6, atol=1e-9)


@ALL
def test_bad_share_is_named_by_its_position(label: str) -> None:
    codec = make(label)
    good = encoded(codec, gaussians(1, 300)[0])
    with pytest.raises(BadShareError) as caught:
        weighted_mean_(codec, [good, good[:-1], good], [0.25, 0.25, 0.5], torch.empty(300))
    assert caught.value.position == 1


def test_share_with_a_hostile_scale_is_named_even_in_a_late_chunk() -> None:
    codec = codec_from_name("int8", block=4096)
    numel = 2 * CHUNK
    good = encoded(codec, gaussians(1, numel)[0])
    hostile = bytearray(good)
    hostile[4 * (CHUNK // 4096) : 4 * (CHUNK // 4096) + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(BadShareError) as caught:
        weighted_mean_(codec, [good, good, hostile], mean_weights([1, 1, 1]), torch.empty(numel))
    assert caught.value.position == 2


@ALL
def test_no_valid_share_can_make_the_result_unencodable(label: str) -> None:
    codec = make(label)
    huge = encoded(codec, torch.full((300,), 2.0**64))
    if codec.name in {"int4", "int8"}:
        scale_bytes = {"fp32": b"\x00\x00\x80\x5f", "bf16": b"\x80\x5f", "pow2": b"\x40", "short": b"\x80\x5f"}
        default = "bf16" if codec.name == "int4" else "fp32"
        largest = scale_bytes[str(VARIANTS[label].get("scale", default))]
        huge[: len(largest)] = largest
    values = torch.empty(300)
    result = bytearray(codec.payload_bytes(300))
    reduce_segment(codec, [huge, huge], [0.5, 0.5], torch.full((300,), 2.0**64), values, result)
    assert bool((values.abs() <= 2.0**64).all())
