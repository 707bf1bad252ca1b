"""Products of low rank: the same bits in fp32 as in float64 wherever it is used, and short ways to orthonormal rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from dilocoxd.compress import columns, loops, lowrank
from dilocoxd.compress.codec import MAGNITUDE_MAX
from dilocoxd.compress.columns import ColumnInt, Single, exact_in_single, exact_product, spread_for
from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.lowrank import LowRank, orthonormal, principal, straightened
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.wire.layout import ParamSpec, make_layout

BLOCK = 16


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def drawn_payload(data: st.DataObject, codec: ColumnInt, low_rank: int, length: int, spread: int) -> Tensor:
    """Any codes with any scales that the format takes: of all sizes, some of zero, as near or as far as is allowed."""
    seed, top = data.draw(st.integers(0, 2**31)), data.draw(st.sampled_from([-40, -3, 0, 30, 63]))
    width = data.draw(st.integers(0, spread))
    generator = torch.Generator().manual_seed(seed)
    blocks = low_rank * -(-length // BLOCK)
    exponents = torch.randint(max(top - width, -64), top + 1, (blocks,), generator=generator)
    mantissas = torch.randint(8, 16, (blocks,), generator=generator)
    scales = torch.ldexp(mantissas / 8, exponents).bfloat16()
    scales[torch.rand(blocks, generator=generator) < data.draw(st.sampled_from([0, 0.1]))] = 0
    numel = low_rank * length
    payload = torch.randint(0, 256, (codec.payload_bytes(numel),), generator=generator, dtype=torch.uint8)
    payload[: 2 * blocks] = scales.view(torch.uint8)
    return payload


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_single_and_wide_product_have_the_same_bits_for_every_payload(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([4, 4, 4, 8]))
    low_rank, lengths = data.draw(st.integers(1, 70)), [data.draw(st.integers(1, 90)) for _ in range(2)]
    spread = spread_for(bits, low_rank)
    factors, scales = [], []
    for length in lengths:
        codec = ColumnInt(bits, BLOCK, length, spread)
        payload = drawn_payload(data, codec, low_rank, length, spread)
        out = torch.empty(low_rank * length)
        codec.decode(payload, out)
        factors.append(out.view(low_rank, length))
        scales.append(codec.scales_of(payload, out.numel()))
    where = exact_in_single(scales[0], scales[1], bits)
    assert where.shape == tuple(-(-length // BLOCK) for length in lengths)
    wide, single = torch.full(lengths, math.nan), torch.full(lengths, math.nan)
    exact_product(*factors, wide)
    exact_product(*factors, single, Single(where, BLOCK))
    assert torch.equal(wide.view(torch.int32), single.view(torch.int32))
    assert_whole_numbers_of_24_bits(*factors, where)


def assert_whole_numbers_of_24_bits(p_RM: Tensor, r_RN: Tensor, where: Tensor) -> None:
    """The promise itself, without a product of torch's: sums of magnitudes in units of the least bit of any product."""
    for row, column in where.nonzero().tolist():
        p = p_RM[:, row * BLOCK : (row + 1) * BLOCK].double().unsqueeze(2)
        products = p * r_RN[:, column * BLOCK : (column + 1) * BLOCK].double().unsqueeze(1)
        if not bool(products.any()):
            continue
        total = float(products.abs().sum(dim=0).amax())
        assert total <= MAGNITUDE_MAX
        mantissas, exponents = torch.frexp(products[products != 0])
        whole = (mantissas.abs() * 2.0**53).long()
        lowest = torch.log2((whole & -whole).double()).int()
        unit = int((exponents - 53 + lowest).amin())
        assert unit >= -126
        assert total <= 2.0 ** (unit + 24)


def test_blocks_of_random_factors_are_exact_in_single_and_those_of_8_bits_or_steep_ones_are_not() -> None:
    for bits, steepness, is_exact in ((4, 0.0, True), (4, 0.07, True), (4, 0.4, False), (8, 0.0, False)):
        scales = []
        for length, slope in ((256, 0.0), (512, steepness)):
            codec = ColumnInt(bits, 128, length, spread_for(bits, 64))  # type: ignore[arg-type]
            values = gaussian(64, length, seed=length) * torch.pow(2.0, -slope * torch.arange(64.0)).unsqueeze(1)
            payload = torch.empty(codec.payload_bytes(values.numel()), dtype=torch.uint8)
            codec.encode(values.view(-1), payload)
            scales.append(codec.scales_of(payload, values.numel()))
        assert bool(exact_in_single(scales[0], scales[1], bits).all()) == is_exact


def test_a_few_blocks_that_need_float64_get_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    p_RM, r_RN = gaussian(9, 100).mul(8).round(), gaussian(9, 120, seed=1).mul(8).round()
    where = torch.ones(7, 8, dtype=torch.bool)
    where[2, 3] = where[2, 5] = where[6, 7] = False
    shapes, wide = [], columns._wide_product
    monkeypatch.setattr(columns, "_wide_product", lambda p, r, out: (shapes.append(tuple(out.shape)), wide(p, r, out)))
    out, whole = torch.empty(100, 120), torch.empty(100, 120)
    exact_product(p_RM, r_RN, out, Single(where, BLOCK))
    assert shapes == [(16, 48), (4, 8)]
    exact_product(p_RM, r_RN, whole)
    assert torch.equal(out, whole)
    exact_product(p_RM, r_RN, out, Single(torch.zeros_like(where), BLOCK))
    assert shapes[2:] == [(100, 120), (100, 120)]


@pytest.mark.parametrize("is_deferred", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_results_are_expanded_in_fp32_also_by_way_of_the_exchange(
    monkeypatch: pytest.MonkeyPatch, *, is_deferred: bool, is_compiled: bool
) -> None:
    layout = make_layout([ParamSpec("w", (300, 1000)), ParamSpec("b", (77,))], 1 << 20)
    inner = LowRank(layout, 32, codec_from_name("int4"))
    segment, filler = layout.segments[0], [b"\0"] if is_deferred else []
    transform = Deferred(inner) if is_deferred else inner
    payloads = []
    for index in range(2):
        payloads.append(bytearray(inner.payload_bytes(index, segment)))
        inner.codec(index, segment).encode(gaussian(inner.vector_numel(index, segment), seed=index), payloads[index])
    vector, want, out = torch.empty(inner.vector_numel(1, segment)), torch.empty(segment.numel), torch.empty(0)
    inner.codec(1, segment).decode(payloads[1], vector)
    inner.expand_vector(segment, vector, payloads[:1], want)
    if not is_compiled:
        monkeypatch.setattr(loops, "found", None)
    monkeypatch.setattr(columns, "_wide_product", None)  # cannot be called
    out = torch.empty(segment.numel)
    transform.expand(segment, payloads[1], [*filler, payloads[0]], out)
    assert torch.equal(out.view(torch.int32), want.view(torch.int32))
    sums = torch.ones(segment.numel)
    transform.add_expanded_(segment, payloads[1], [*filler, payloads[0]], sums)
    assert torch.equal(sums, want + 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_library_that_rounds_what_it_multiplies_is_found_and_not_used(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    plain = torch.mm

    def rounding(a: Tensor, b: Tensor, **options: Tensor) -> Tensor:
        if a.dtype == torch.float32:
            a, b = a.to(dtype).float(), b.to(dtype).float()
        return plain(a, b, **options)

    assert columns.is_single_whole.__wrapped__()
    monkeypatch.setattr(torch, "mm", rounding)
    is_whole = columns.is_single_whole.__wrapped__()
    assert not is_whole
    monkeypatch.setattr(columns, "is_single_whole", lambda: is_whole)
    p_RM, r_RN, out = torch.full((2, 16), 4097.0), torch.full((2, 16), 2047.0), torch.empty(16, 16)
    exact_product(p_RM, r_RN, out, Single(torch.ones(1, 1, dtype=torch.bool), BLOCK))
    assert bool((out == 2 * 4097 * 2047).all())


def rows_of_a_kind(kind: str) -> Tensor:
    rows = gaussian(24, 200)
    match kind:
        case "graded":
            return orthonormal(rows) * torch.pow(2.0, -torch.arange(24.0)).unsqueeze(1)
        case "steep and mixed":
            return orthonormal(gaussian(24, 24, seed=1)) @ rows_of_a_kind("graded")
        case "tiny":
            return rows * 2.0**-70
        case "smallest":
            return rows * 2.0**-140
        case "huge":
            return rows * 2.0**64
        case "dependent":
            return torch.cat([rows[:12], rows[:12] + 1e-6 * gaussian(12, 200, seed=2)])
        case "with zeros":
            return torch.cat([rows[:20], torch.zeros(4, 200)])
        case _:
            return rows


KINDS = ["random", "graded", "steep and mixed", "tiny", "smallest", "huge", "dependent", "with zeros"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_become_orthonormal(kind: str) -> None:
    rows = rows_of_a_kind(kind)
    ours = straightened(rows)
    assert float((ours @ ours.t() - torch.eye(24)).abs().amax()) < 2e-5
    if kind not in ("dependent", "with zeros", "smallest"):  # of these the last rows follow from roundings
        plain = orthonormal(rows)
        assert float((ours.t() @ ours - plain.t() @ plain).norm()) < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_warm_start_is_orthonormal_and_has_the_singular_values_and_their_order(kind: str) -> None:
    rows = rows_of_a_kind(kind)
    sizes, warm_NR = principal(rows)
    assert warm_NR.shape == (200, 24)
    assert warm_NR.is_contiguous()
    assert float((warm_NR.t() @ warm_NR - torch.eye(24)).abs().amax()) < 2e-5
    if kind == "smallest":
        return
    expected = torch.linalg.svdvals(rows.double())
    assert float((sizes - expected).abs().amax() / expected[0]) < 1e-3
    lengths = (rows @ warm_NR).double().norm(dim=0) / expected[0]
    strong = expected > 1e-2 * expected[0]
    assert torch.allclose(lengths[strong], (expected / expected[0])[strong], rtol=1e-3)


def test_a_result_near_the_largest_number_leaves_a_warm_start_of_numbers() -> None:
    layout = make_layout([ParamSpec("w", (40, 24))], 4096)
    transform, segment = LowRank(layout, 3, codec_from_name("fp32")), layout.segments[0]
    payload = bytearray(transform.payload_bytes(1, segment))
    transform.codec(1, segment).encode(gaussian(transform.vector_numel(1, segment)) * 2.0**62, payload)
    transform.recall(segment, payload)
    assert bool(torch.isfinite(transform.singular_values["w@0"]).all())
    assert bool(torch.isfinite(transform.project(0, segment, gaussian(segment.numel), ())).all())


@pytest.mark.parametrize("seed", range(4))
def test_a_p_near_the_largest_number_leaves_a_contribution_that_can_be_sent(seed: int) -> None:
    layout = make_layout([ParamSpec("w", (40, 24))], 4096)
    transform, segment = LowRank(layout, 3, codec_from_name("fp32")), layout.segments[0]
    first, last = (bytearray(transform.payload_bytes(index, segment)) for index in range(2))
    transform.codec(0, segment).encode(gaussian(transform.vector_numel(0, segment), seed=seed) * 2.0**62, first)
    update, p_hat = gaussian(segment.numel, seed=seed + 9), torch.empty(transform.vector_numel(0, segment))
    vector = transform.project(1, segment, update, [first])
    transform.codec(1, segment).encode(vector, last)
    transform.codec(0, segment).decode(first, p_hat)
    expected = torch.linalg.lstsq(p_hat.view(3, 40).t().double(), update.view(40, 24).double()).solution
    assert float((vector.view(3, 24) - expected).norm() / expected.norm()) < 1e-5


def test_the_short_ways_are_taken_where_a_run_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second round on no QR: P, and R of the result, are far from dependent."""
    layout = make_layout([ParamSpec("w", (128, 200))], 1 << 20)
    transform, segment = LowRank(layout, 24, codec_from_name("int4")), layout.segments[0]
    update = (gaussian(128, 100) * torch.arange(1.0, 101) ** -0.7) @ gaussian(100, 200, seed=1)
    for number in range(3):
        if number == 1:
            monkeypatch.setattr(lowrank, "orthonormal", None)  # cannot be called
        p_RM = transform.project(0, segment, update.view(-1), ())
        transform.finish_mean_(0, segment, p_RM, None, ())
        first = bytearray(transform.payload_bytes(0, segment))
        transform.codec(0, segment).encode(p_RM, first)
        last = bytearray(transform.payload_bytes(1, segment))
        transform.codec(1, segment).encode(transform.project(1, segment, update.view(-1), [first]), last)
        transform.learn(segment, [first, last])


@pytest.mark.parametrize("shape", [(40, 300), (300, 40), (128, 129), (129, 128), (257, 1)])
def test_fit_is_least_squares_in_the_span_of_p(shape: tuple[int, int]) -> None:
    rows, count = shape
    a_MN, p_RM = gaussian(rows, count), orthonormal(gaussian(7, rows, seed=1)) + 0.02 * gaussian(7, rows, seed=2)
    out = torch.full((7, count), math.nan)
    lowrank._fit(p_RM, a_MN, out)
    expected = torch.linalg.lstsq(p_RM.t().double(), a_MN.double()).solution
    assert float((out - expected).norm() / expected.norm()) < 1e-5
