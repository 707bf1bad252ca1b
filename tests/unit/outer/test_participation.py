"""Rounds with fewer contributors than usual make a part of a step: what that means for the shared model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name
from dilocoxd.outer.rounding import participation
from tests.reference.engine import Engine, Recipe
from tests.unit.outer.toys import flat_layout, nesterov

SITES = ("a", "b", "c", "d")
NUMEL = 300
SGD = outer_from_name("sgd", 1.0)


def start(rounds: int, optimizer: OuterOptimizer = SGD) -> Engine:
    recipe = Recipe(
        NoTransform(flat_layout(NUMEL), codec_from_name("fp32")),
        optimizer,
        ErrorFeedback(),
        participation_rounds=rounds,
    )
    return Engine.start(recipe, torch.zeros(NUMEL), SITES)


def updates(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {site: torch.randn(NUMEL, generator=generator) for site in SITES}


def take_part(engine: Engine, given: dict[str, Tensor]) -> Tensor:
    """One round of these sites; what the anchor moved by."""
    before = engine.anchor.clone()
    engine.commit(engine.offer(given))
    return engine.anchor - before


def test_part_of_a_step_is_the_part_that_is_present() -> None:
    assert [participation(1, 3), participation(3, 1), participation(4, 0)] == [0.25, 0.75, 1.0]


def test_four_rounds_of_one_site_move_the_model_as_one_round_of_four_does() -> None:
    together, alone = start(64), start(64)
    first, second = updates(1), updates(2)
    for engine in (together, alone):
        take_part(engine, first)
    expected = take_part(together, second)
    moved = sum((take_part(alone, {site: second[site]}) for site in SITES), torch.zeros(NUMEL))
    assert torch.allclose(moved, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rounds", [1, 3, 64])
def test_steps_are_whole_again_when_the_full_rounds_are_long_ago(rounds: int) -> None:
    engine = start(rounds)
    take_part(engine, updates(0))
    for index in range(1, rounds + 2):
        own = updates(index)["b"]
        part = 0.25 if index <= rounds else 1.0
        assert torch.allclose(take_part(engine, {"b": own}), -part * own, rtol=1e-6, atol=1e-6), index


def test_a_round_with_more_than_ever_makes_a_whole_step() -> None:
    engine = start(64)
    take_part(engine, {"a": updates(0)["a"]})
    given = updates(1)
    mean = torch.stack([given[site] for site in SITES]).mean(0)
    assert torch.allclose(take_part(engine, given), -mean, rtol=1e-5, atol=1e-6)


def test_where_all_take_part_in_every_round_nothing_changes() -> None:
    watched, plain = start(64, nesterov(0.4, 0.9)), start(0, nesterov(0.4, 0.9))
    for index in range(5):
        given = updates(index)
        take_part(watched, given)
        take_part(plain, given)
    assert torch.equal(watched.anchor, plain.anchor)


def test_without_the_rule_one_site_alone_makes_whole_steps() -> None:
    engine = start(0)
    take_part(engine, updates(0))
    own = updates(1)["c"]
    assert torch.allclose(take_part(engine, {"c": own}), -own, rtol=1e-6, atol=1e-6)


def test_a_void_round_does_not_count() -> None:
    engine = start(1)
    take_part(engine, updates(0))
    void, next_one = updates(1)["d"], updates(2)["d"]
    engine.commit(engine.offer({"d": void}), frozenset(SITES))
    moved = take_part(engine, {"d": next_one})
    assert torch.allclose(moved, -0.25 * (void + next_one), rtol=1e-5, atol=1e-6)
    assert engine.turnout == [4, 1]
