"""Shares that point against the others: told by whole numbers, with the same bits everywhere, and not counted."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform
from dilocoxd.outer.clipping import ClipRule, decode_record
from dilocoxd.outer.contrary import contrary_of, contrary_shares, products, typical_cosines
from dilocoxd.outer.passes import SegmentPass, reduce_pass, weigh_pass
from dilocoxd.outer.reduce import share_norms
from tests.reference.engine import Engine, Recipe
from tests.unit.outer.toys import flat_layout, nesterov

NUMEL = 8192
KAPPA = 2.5
CODECS = ("fp32", "int4", "int2", "topk")


def directed(*parts: float, numel: int = NUMEL, seed: int = 1) -> list[Tensor]:
    """Vectors that agree with a common direction by so much, with unit noise of their own."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(numel, generator=generator)
    return [part * common + torch.randn(numel, generator=generator) for part in parts]


def found(codec_name: str, vectors: list[Tensor]) -> list[int]:
    codec, numel = codec_from_name(codec_name), vectors[0].numel()
    shares = []
    for vector in vectors:
        shares.append(bytearray(codec.payload_bytes(numel)))
        codec.encode(vector, shares[-1])
    return sorted(contrary_shares(codec, shares, share_norms(codec, shares, numel), numel))


@pytest.mark.parametrize("codec_name", CODECS)
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e6])
def test_a_flipped_share_is_contrary_whatever_its_size(codec_name: str, size: float) -> None:
    for count in (3, 4, 8):
        # Of top-k shares few places meet: it takes more of them to tell a direction from chance.
        first, *others = directed(*[0.7] * count, numel=4 * NUMEL if codec_name == "topk" else NUMEL)
        assert found(codec_name, [-size * first, *others]) == [0]
        assert found(codec_name, [size * first, *others]) == []


def test_one_liar_of_three_moves_no_honest_share_below_the_limit() -> None:
    """It points away from one honest site and along with the other: the mean of two cosines would drop the first."""
    for seed in range(8):
        first, second = directed(0.5, 0.7, seed=seed)
        toward = second / second.norm() - first / first.norm()
        assert 0 not in found("int4", [first, second, toward * first.norm()])
        assert found("int4", [first, second, -first]) == [2]
        first, second, third = directed(0.4, 0.8, 0.6, numel=1 << 18, seed=seed)
        assert found("int4", [first, second, -third]) == [2]


@pytest.mark.parametrize("codec_name", CODECS)
def test_two_of_eight_together_are_contrary_and_half_of_a_group_is_not(codec_name: str) -> None:
    assert found(codec_name, directed(-0.7, 0.7, 0.7, 0.7, -0.7, 0.7, 0.7, 0.7)) == [0, 4]
    assert found(codec_name, directed(-0.7, 0.7, -0.7, 0.7)) == []
    assert found(codec_name, directed(-0.7, 0.7)) == [], "two have no majority"


def test_honest_sites_with_little_or_nothing_in_common_are_counted() -> None:
    for seed in range(50):
        assert found("int4", directed(*[0.0] * 4, seed=seed)) == []
        assert found("int4", directed(*[0.3] * 3, 0.0, seed=seed)) == [], "one that learns from other text"


def test_noise_of_a_small_segment_is_not_taken_for_a_direction() -> None:
    assert not any(found("fp32", directed(*[0.2] * 4, numel=12, seed=seed)) for seed in range(200))


def test_the_limit_is_half_of_what_the_others_agree_by() -> None:
    assert contrary_of([0.2, 0.2, 0.2, -0.11], 1 << 20) == {3}
    assert contrary_of([0.2, 0.2, 0.2, -0.09], 1 << 20) == frozenset()
    assert contrary_of([0.0, 0.0, -0.01], 1 << 20) == {2}
    assert contrary_of([0.0, 0.0, -0.01], 1 << 10) == frozenset(), "3 / 32 is noise"
    assert contrary_of([0.5, 0.5, -0.5, -0.5], 1 << 20) == frozenset()


def test_zeros_are_neutral() -> None:
    assert typical_cosines([[0.0, 0.0, 0.0], [0.0, 4.0, 4.0], [0.0, 4.0, 4.0]]) == [0.0, 1.0, 1.0]
    ones = torch.ones(NUMEL)
    assert found("int4", [torch.zeros(NUMEL), ones, ones, -ones]) == [3]


def test_products_are_those_of_whole_numbers() -> None:
    """More elements than a block and a chunk, codes at their limit of 15: as integers count them."""
    numel = (1 << 19) + 70_001
    codec, generator = codec_from_name("fp32"), torch.Generator().manual_seed(3)
    vectors = [torch.ones(numel), -torch.ones(numel), torch.randn(numel, generator=generator)]
    vectors.append(torch.where(torch.rand(numel, generator=generator) < 0.01, 100.0, 0.0))
    shares = [bytearray(codec.payload_bytes(numel)) for _ in vectors]
    for vector, share in zip(vectors, shares, strict=True):
        codec.encode(vector, share)
    norms = share_norms(codec, shares, numel)
    codes = []
    for vector, norm in zip(vectors, norms, strict=True):
        scaled = vector * torch.tensor(3 * math.sqrt(numel) / norm, dtype=torch.float32)
        codes.append(scaled.clamp(-15, 15).trunc().to(torch.int64))
    assert max(int(code.max()) for code in codes) == 15
    expected = [[float((one * other).sum()) for other in codes] for one in codes]
    assert products(codec, shares, norms, numel) == expected


def test_the_record_says_nothing_was_counted_and_the_mean_is_that_of_the_others() -> None:
    codec = codec_from_name("fp32")
    numel = 4096
    at = SegmentPass(NoTransform(flat_layout(numel), codec), 0, flat_layout(numel).segments[0])
    vectors = directed(0.7, -0.7, 0.7, 0.7, numel=numel)
    shares = [bytearray(codec.payload_bytes(numel)) for _ in vectors]
    for vector, share in zip(vectors, shares, strict=True):
        codec.encode(vector, share)
    for order in itertools.permutations(range(4)):
        _, record = weigh_pass(at, [shares[i] for i in order], [0.25] * 4, ClipRule(KAPPA, None, True))
        assert [record.factors[order.index(i)] for i in range(4)] == [1.0, 0.0, 1.0, 1.0]
        assert decode_record(record.encode(8)).factors[:4] == record.factors
    out = bytearray(codec.payload_bytes(numel))
    reduce_pass(at, shares, weigh_pass(at, shares, [0.25] * 4, ClipRule(KAPPA, None, True))[0], None, out)
    mean = torch.empty(numel)
    codec.decode(out, mean)
    assert torch.equal(mean, 0.25 * vectors[0] + 0.25 * vectors[2] + 0.25 * vectors[3])


def engine(*, drops: bool, is_centered: bool = False, codec_name: str = "int4") -> Engine:
    transform = NoTransform(flat_layout(NUMEL), codec_from_name(codec_name))
    recipe = Recipe(transform, nesterov(0.7, 0.9), clip_kappa=KAPPA, is_centered=is_centered, drops_contrary=drops)
    return Engine.start(recipe, torch.zeros(NUMEL), ("a", "b", "c", "d"))


@pytest.mark.parametrize("is_centered", [False, True])
@pytest.mark.parametrize("codec_name", CODECS[:3])
def test_what_was_left_out_stays_in_the_feedback(codec_name: str, is_centered: bool) -> None:
    """I8 with shares that are left out in every other round: all updates are in the Deltas, or still owed."""
    running = engine(drops=True, is_centered=is_centered, codec_name=codec_name)
    offered, committed = torch.zeros(NUMEL, dtype=torch.float64), torch.zeros(NUMEL, dtype=torch.float64)
    for index in range(6):
        made = directed(0.7, -2.0 if index % 2 else 0.7, 0.7, 0.7, seed=index)
        updates = dict(zip("abcd", made, strict=True))
        offered += sum(update.double() for update in made) / 4
        running.commit(running.offer(updates))
        committed += running.delta.double()
    kept = sum(e.double() for e in running.feedback.values()) / 4
    error = (committed + kept + running.owner_residual.double() - offered).norm() / offered.norm()
    assert error < 1e-5
    assert any(record.factors[1] == 0 for record in itertools.chain(*running.records.values()))


def test_nobody_contrary_gives_the_same_bits_as_without_the_rule() -> None:
    plain, watched = engine(drops=False), engine(drops=True)
    for index in range(4):
        for each in (plain, watched):
            each.commit(each.offer(dict(zip("abcd", directed(0.7, 0.7, 0.5, 0.3, seed=index), strict=True))))
    assert torch.equal(plain.anchor, watched.anchor)
    assert all(torch.equal(plain.feedback[site], watched.feedback[site]) for site in "abcd")


def test_a_wrong_sign_subtracts_although_it_is_clipped_and_adds_nothing_when_it_is_left_out() -> None:
    """What the rule is for; without it, 2.5 of the 3 honest norms are taken back."""
    moved = {}
    for drops in (False, True):
        running, honest = engine(drops=drops), directed(2.0, 2.0, 2.0, 2.0)
        updates = dict(zip("abcd", [*honest[:3], -1e6 * honest[3]], strict=True))
        running.commit(running.offer(updates))
        whole = sum(honest) / 4
        moved[drops] = float(running.delta.dot(whole) / whole.dot(whole))
    assert moved[False] < 0.3
    assert math.isclose(moved[True], 0.75, rel_tol=0.1)
