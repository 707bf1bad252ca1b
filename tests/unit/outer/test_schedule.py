"""Schedules: AdaGradCmp, per-site H, QSR, weight by age (ALGORITHMS I13 to I15)."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, strategies as st

from dilocoxd.compress.lowrank import LowRank, pivoted_rank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.errors import ConfigError
from dilocoxd.outer.optimizers import outer_from_name
from dilocoxd.outer.schedule import (
    Adaptive,
    AdaptiveLimits,
    AdaptiveState,
    Qsr,
    cosine_rate,
    measured_rank,
    qsr_inner_steps,
)
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.reference.adaptive import AdaptiveRank, RankMeter, effective_rank, observed
from tests.reference.engine import Engine, Recipe


def test_i13_start_values_until_the_window_is_full_then_the_mean() -> None:
    limits = AdaptiveLimits(lowrank_r=64, inner_steps=125, window=3)
    state = AdaptiveState()
    for fraction in (0.5, 0.25):
        state = observed(state, limits, fraction)
        assert state.decide(limits) == (64, 125)
    state = observed(state, limits, 0.75)
    assert state.decide(limits) == (36, 70)
    state = observed(state, limits, 0.5)
    assert state.measured == (0.25, 0.75, 0.5)


def test_i13_couplings_clamps_and_regrowth() -> None:
    low = AdaptiveState((0.01,) * 5)
    assert low.decide(AdaptiveLimits(64, 100, lowrank_r_min=8, inner_steps_min=20)) == (8, 20)
    assert low.decide(AdaptiveLimits(64, 100, lowrank_r_min=8, coupling="grow", inner_steps_max=500)) == (8, 500)
    assert low.decide(AdaptiveLimits(64, 100, lowrank_r_min=8, coupling="none")) == (8, 100)
    full = AdaptiveState((1.0,) * 5)
    assert full.decide(AdaptiveLimits(64, 100)) == (64, 100)
    limits = AdaptiveLimits(64, 100, window=1)
    fraction = 8 / 64
    grown = [AdaptiveState((fraction,)).decide(limits)[0]]
    for _ in range(40):
        fraction = grown[-1] / 64
        grown.append(AdaptiveState((fraction,)).decide(limits)[0])
    assert grown == sorted(grown)
    assert grown[-1] == 64, "a gradient that uses all it is given gets the full rank back"


@given(fractions=st.lists(st.floats(0, 1), min_size=1, max_size=20), r=st.integers(1, 4096), h=st.integers(1, 1000))
def test_i13_limits_always_hold(fractions: list[float], r: int, h: int) -> None:
    for coupling in ("shrink", "grow", "none"):
        limits = AdaptiveLimits(r, h, 3, 1, 1, 2 * h, coupling)  # type: ignore[arg-type]
        state = AdaptiveState()
        for fraction in fractions:
            state = observed(state, limits, fraction)
            lowrank_r, steps = state.decide(limits)
            assert 1 <= lowrank_r <= r
            assert 1 <= steps <= 2 * h


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_i13_planted_rank_is_measured_from_the_committed_result(rank: int) -> None:
    layout = make_layout([ParamSpec("w", (128, 96))], 1 << 20)
    generator = torch.Generator().manual_seed(rank)
    left, right = torch.randn(128, rank, generator=generator), torch.randn(rank, 96, generator=generator)
    transform = LowRank(layout, 16, codec_from_name("int4"), bits=8)
    engine = Engine.start(Recipe(transform, outer_from_name("sgd", 1.0)), torch.zeros(layout.numel), ("a", "b"))
    for _ in range(3):
        engine.commit(engine.offer(dict.fromkeys(("a", "b"), (left @ right).reshape(-1))))
    values = transform.singular_values["w@0"]
    assert effective_rank(values.tolist(), eps=0.005) == rank
    meter = RankMeter(16, eps=0.005)
    meter.add(values.tolist())
    assert meter.fraction() == rank / 16


def test_i13_two_peers_agree_and_low_rank_follows_the_gradient_between_rounds_only() -> None:
    layout = make_layout([ParamSpec("w", (128, 96))], 1 << 20)
    generator = torch.Generator().manual_seed(9)
    update = (torch.randn(128, 2, generator=generator) @ torch.randn(2, 96, generator=generator)).reshape(-1)
    histories = []
    for _ in range(2):
        transform = LowRank(layout, 16, codec_from_name("int4"), bits=8)
        engine = Engine.start(Recipe(transform, outer_from_name("sgd", 1.0)), torch.zeros(layout.numel), ("a", "b"))
        adaptive = AdaptiveRank(transform, AdaptiveLimits(16, 40, window=2), eps=0.005)
        engine.after_commit = adaptive
        history = []
        for _ in range(5):
            offer = engine.offer(dict.fromkeys(("a", "b"), update))
            before = transform.lowrank_r
            engine.commit(offer)
            history.append((before, adaptive.lowrank_r, adaptive.inner_steps, engine.anchor.sum().item()))
        histories.append(history)
    assert histories[0] == histories[1]
    assert [row[0] for row in histories[0]] == [16, 16, 3, 3, 3]
    assert [row[2] for row in histories[0]] == [40, 8, 8, 8, 8]


def test_effective_rank_by_hand() -> None:
    assert effective_rank([3.0, 1.0, 0.0], 0.1) == 1
    assert effective_rank([1.0, 3.0, 0.0], 0.05) == 2
    assert effective_rank([0.0, 0.0], 0.1) == 0
    assert RankMeter(8).fraction() == 1.0


def test_i15_qsr_floor_and_monotony() -> None:
    assert qsr_inner_steps(0.02, 0.005, 4) == 16
    assert qsr_inner_steps(0.02, 0.1, 4) == 4
    steps = [qsr_inner_steps(0.02, lr / 1000, 4) for lr in range(20, 0, -1)]
    assert steps == sorted(steps)


@pytest.mark.parametrize("bad", [{"lowrank_r_min": 65}, {"window": 0}, {"inner_steps_min": 200}, {"lowrank_r_min": 0}])
def test_contradictory_limits_are_config_errors(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        AdaptiveLimits(64, 100, **bad)  # type: ignore[arg-type]


def test_adaptive_schedule_is_announced_one_entry_ahead_and_rounded_up_to_a_level() -> None:
    schedule = Adaptive(AdaptiveLimits(lowrank_r=64, inner_steps=100, window=2, lowrank_r_min=8))
    assert schedule.lowrank_levels == tuple(range(8, 65, 4))
    state, seen = schedule.start, []
    for measured in (16, 16, 16, 64, 64):
        state = schedule.advance(state, measured)
        seen.append((state.lowrank_r, state.inner_steps, state.next_lowrank_r, state.next_inner_steps))
    assert seen[0] == (64, 100, 64, 100)
    assert seen[1] == (64, 100, 20, 31), "ceil(1.1 * 16) = 18, the next level is 20"
    assert seen[2] == (20, 31, 20, 31)
    assert seen[3] == (20, 31, 44, 69)
    assert state.shared_steps == 100 + 100 + 100 + 31 + 31
    assert state.measured == (64, 64)


def test_qsr_schedule_follows_the_inner_rate_between_its_limits() -> None:
    rate = partial(cosine_rate, 4e-3, 0.1, 1000)
    schedule = Qsr(0, (10, 5, 400), 0.02, rate)
    state, steps = schedule.start, []
    while state.shared_steps < 1200:
        state = schedule.advance(state)
        steps.append(state.inner_steps)
    assert steps[:3] == [10, 25, 25]
    assert steps[1:] == sorted(steps[1:])
    assert steps[-1] == 400


def test_mean_of_measured_ranks_is_a_ratio_of_integers() -> None:
    assert measured_rank(0, 0, 8) == 64
    assert measured_rank(16, 2, 8) == 64
    assert measured_rank(6, 3, 8) == 16
    assert measured_rank(9, 1, 8) == 64


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_pivoted_rank_finds_a_planted_rank_and_is_never_below_the_one_of_singular_values(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    planted = torch.randn(16, rank, generator=generator) @ torch.randn(rank, 96, generator=generator)
    assert pivoted_rank(planted, 1e-6) == rank
    noisy = planted + 0.05 * torch.randn(16, 96, generator=generator)
    for eps in (0.5, 0.1, 0.01):
        found = pivoted_rank(noisy, eps)
        assert effective_rank(torch.linalg.svdvals(noisy).tolist(), eps) <= found <= 16
    assert pivoted_rank(torch.zeros(4, 9), 0.1) == 0
