"""Clipping of contributions: whose norm stands out is scaled down, and the books stay exact to the bit."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, strategies as st

from dilocoxd.compress.codec import CHUNK, square_sum
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform, Transform
from dilocoxd.errors import WireError
from dilocoxd.outer.clipping import ClipRecord, ClipRule, clip_record, decode_record, record_bytes
from dilocoxd.outer.passes import SegmentPass, weigh_pass
from dilocoxd.outer.reduce import BadShareError, share_norms
from dilocoxd.outer.rounding import capped_tokens, mean_weights
from tests.reference.engine import Engine, Recipe
from tests.unit.compress.cases import VARIANTS, make
from tests.unit.outer.toys import flat_layout, nesterov

NORMS = st.lists(st.floats(0, 2.0**64), min_size=1, max_size=9)
KAPPA = 2.5
SITES = ("a", "b", "c", "d")


def test_weights_are_capped_at_twice_the_lower_median() -> None:
    assert capped_tokens([100, 100, 900]) == [100, 100, 200]
    assert capped_tokens([100, 900]) == [100, 200]
    assert capped_tokens([900, 100, 900, 100]) == [200, 100, 200, 100], "just half of them may lie"
    assert capped_tokens([7]) == [7]
    assert mean_weights([100, 900, 100]) == mean_weights([100, 200, 100])


@given(NORMS, st.lists(st.floats(0, 2.0**64), max_size=8))
def test_no_counted_norm_is_above_the_limit_and_the_honest_middle_counts_whole(
    norms: list[float], recent: list[float]
) -> None:
    record = clip_record(norms, recent, KAPPA)
    middle = sorted(norms)[(len(norms) - 1) // 2]
    limit = KAPPA * (max([middle, *recent]) if len(norms) == 2 else middle)
    for norm, factor in zip(norms, record.factors, strict=True):
        assert 0 <= factor <= 1
        assert len(norms) == 1 or norm * factor <= limit
        assert factor == 1 or norm > KAPPA * middle
    assert decode_record(record.encode(16)).factors[: len(norms)] == record.factors, "bf16 holds them exactly"


def test_two_members_are_measured_against_what_the_last_entries_recorded() -> None:
    assert clip_record([1.0, 4.0], [], KAPPA).factors == (1.0, 0.625)
    assert clip_record([1.0, 4.0], [2.0] * 8, KAPPA).factors == (1.0, 1.0)
    assert clip_record([3.0, 4.0], [0.001] * 8, KAPPA).factors == (1.0, 1.0), "what grows together is not clipped"
    assert clip_record([1e6], [1.0] * 8, KAPPA).factors == (1.0,), "nobody to compare it with"


def test_two_honest_sites_of_unequal_speed_are_soon_not_clipped() -> None:
    recent: list[float] = []
    for _ in range(16):
        record = clip_record([1.0, 4.0], recent[-8:], KAPPA)
        recent.append(record.norm)
    assert record.is_whole


def test_a_small_liar_stops_nobody_and_a_large_one_moves_little() -> None:
    assert clip_record([0.0, 1.0, 1.1, 0.9], [], KAPPA).is_whole
    assert clip_record([1.0, 1.1, 0.9, 1e6], [], KAPPA).factors[3] * 1e6 <= KAPPA


@pytest.mark.parametrize("label", list(VARIANTS))
def test_norms_are_those_of_the_decoded_values(label: str) -> None:
    codec, numel = make(label), CHUNK + 4100
    values = torch.randn(numel, generator=torch.Generator().manual_seed(3)) * 1e-3
    payload = bytearray(codec.payload_bytes(numel))
    codec.encode(values, payload)
    codec.decode(payload, values)
    (norm,) = share_norms(codec, [payload], numel)
    assert norm == pytest.approx(float(values.double().norm()), rel=1e-6)


def test_the_sum_of_squares_is_that_of_the_written_order() -> None:
    """Element by element in Python: halves are added, whatever the machine's vectors."""
    values = torch.randn(5000, generator=torch.Generator().manual_seed(4)) * 10.0 ** torch.arange(-20, 20).repeat(125)
    parts = [float(value) * float(value) for value in values]
    assert all(Fraction(float(v)) ** 2 == Fraction(p) for v, p in zip(values, parts, strict=True)), "exact squares"
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [a + b for a, b in zip(parts[:half], parts[-half:], strict=True)] + parts[half : len(parts) - half]
    assert square_sum(values) == parts[0]


@pytest.mark.parametrize("codec_name", ["int4", "int8"])
def test_integer_codecs_have_exact_block_sums(codec_name: str) -> None:
    codec, numel = codec_from_name(codec_name), 4096 * 3
    values = torch.randn(numel, generator=torch.Generator().manual_seed(5))
    payload = bytearray(codec.payload_bytes(numel))
    codec.encode(values, payload)
    codec.decode(payload, values)
    exact = sum(Fraction(float(value)) ** 2 for value in values)
    (norm,) = share_norms(codec, [payload], numel)
    assert norm == pytest.approx(math.sqrt(exact), rel=1e-6)


@pytest.mark.parametrize("data", [b"\x80\x7f", b"\xc0\x7f", b"\x80\xbf"], ids=["inf", "nan", "negative"])
def test_hostile_records_are_refused(data: bytes) -> None:
    good = ClipRecord(1.0, (1.0, 0.5)).encode(2)
    assert len(good) == record_bytes(2)
    for place in range(3):
        with pytest.raises(WireError):
            decode_record(good[: 2 * place] + data + good[2 * place + 2 :])


def test_a_share_that_does_not_decode_is_blamed_while_norms_are_taken() -> None:
    codec = codec_from_name("topk")
    good = bytearray(codec.payload_bytes(5000))
    codec.encode(torch.ones(5000), good)
    with pytest.raises(BadShareError) as caught:
        share_norms(codec, [good, b"\xff" * len(good)], 5000)
    assert caught.value.position == 1


# --- the books


def make_engine(transform: Transform, *, is_centered: bool = False, kappa: float = KAPPA) -> Engine:
    recipe = Recipe(transform, nesterov(0.7, 0.9), clip_kappa=kappa, is_centered=is_centered)
    return Engine.start(recipe, torch.zeros(transform.layout.numel), SITES)


@pytest.mark.parametrize(
    ("codec_name", "is_centered"),
    [("fp32", False), ("int4", False), ("int2", False), ("topk", False), ("fp32", True), ("int4", True)],
)
def test_what_is_cut_off_stays_in_the_feedback(codec_name: str, is_centered: bool) -> None:
    """I8 with clipping: the sum of all Delta is the sum of all mean updates, less what is still owed."""
    numel, rounds = 8192, 6
    engine = make_engine(NoTransform(flat_layout(numel), codec_from_name(codec_name)), is_centered=is_centered)
    generator = torch.Generator().manual_seed(11)
    offered, counted = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
    for index in range(rounds):
        updates = {site: torch.randn(numel, generator=generator) for site in "abcd"}
        if index % 2:
            updates["b"].mul_(1e3)
        offered += sum(update.double() for update in updates.values()) / 4
        engine.commit(engine.offer(updates))
        counted += engine.delta.double()
    kept = sum(e.double() for e in engine.feedback.values()) / 4
    error = (counted + kept + engine.owner_residual.double() - offered).norm() / offered.norm()
    assert error < 1e-5
    assert any(record.factors[1] < 0.01 for record in itertools.chain(*engine.records.values()))


def test_nothing_clipped_gives_the_same_bits_as_no_clipping() -> None:
    numel = 8192
    layout, generator = flat_layout(numel), torch.Generator().manual_seed(12)
    engines = [make_engine(NoTransform(layout, codec_from_name("int4")), kappa=kappa) for kappa in (0.0, KAPPA)]
    for _ in range(4):
        updates = {site: torch.randn(numel, generator=generator) for site in "abcd"}
        for engine in engines:
            engine.commit(engine.offer(updates))
    plain, clipped = engines
    assert torch.equal(plain.anchor, clipped.anchor)
    assert all(torch.equal(plain.feedback[site], clipped.feedback[site]) for site in "abcd")
    assert torch.equal(plain.owner_residual, clipped.owner_residual)


def test_the_order_of_members_does_not_change_who_is_clipped() -> None:
    codec, numel = codec_from_name("int4"), 4096
    transform = NoTransform(flat_layout(numel), codec)
    at = SegmentPass(transform, 0, transform.layout.segments[0])
    shares = []
    for scale in (1.0, 1e5, 1.2, 0.9):
        shares.append(bytearray(codec.payload_bytes(numel)))
        codec.encode(torch.randn(numel, generator=torch.Generator().manual_seed(1)) * scale, shares[-1])
    found = set()
    for order in itertools.permutations(range(4)):
        _, record = weigh_pass(at, [shares[i] for i in order], [0.25] * 4, ClipRule(KAPPA))
        found.add(tuple(record.factors[order.index(i)] for i in range(4)))
    assert len(found) == 1
