"""Streaming fragments (ALGORITHMS I11): limits of alpha, how often and how many at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dilocoxd.compress.registry import codec_from_name
from dilocoxd.compress.transform import NoTransform
from dilocoxd.errors import ConfigError
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.reference.engine import Engine, Recipe
from tests.reference.phases import Phases
from tests.reference.streaming import Streaming, StreamingSettings, strided_fragments
from tests.unit.outer.toys import nesterov

SITES = ("a", "b", "c")
LAYOUT = make_layout([ParamSpec(f"layers.{i}.w", (500,)) for i in range(6)], 4096)


class Pull:
    """theta moves a tenth of the way to the site's own centre each step."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.centres = {site: torch.randn(LAYOUT.numel, generator=generator) for site in SITES}

    def __call__(self, site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
        for _ in range(num_steps):
            theta.sub_((theta - self.centres[site]) * 0.1)


def engine(codec: str = "fp32") -> Engine:
    recipe = Recipe(NoTransform(LAYOUT, codec_from_name(codec)), nesterov(0.4, 0.9))
    return Engine.start(recipe, torch.zeros(LAYOUT.numel), SITES)


def settings(offsets: tuple[int, ...], overlap: int, alpha: float) -> StreamingSettings:
    fragments = strided_fragments(range(6), len(offsets))
    return StreamingSettings(fragments, offsets, 30, overlap, alpha)


def test_fragments_are_strided_and_cover_all_segments() -> None:
    assert strided_fragments(range(6), 3) == ((0, 3), (1, 4), (2, 5))
    assert strided_fragments([0, 0, 1, 2], 2) == ((0, 1, 3), (2,))


def test_equal_offsets_without_overlap_and_mixing_are_diloco() -> None:
    streaming = Streaming(engine("int4"), Pull(), settings((0, 0, 0), 0, 0.0))
    phases = Phases(engine("int4"), Pull(), "none")
    for _ in range(5):
        streaming.run_steps(30)
        phases.run_phase(30)
        assert torch.equal(streaming.engine.anchor, phases.engine.anchor)
        assert all(torch.equal(streaming.thetas[site], phases.sites[site].theta) for site in SITES)


def test_alpha_one_is_local_training() -> None:
    streaming = Streaming(engine(), Pull(), settings((0, 10, 20), 2, 1.0))
    streaming.run_steps(95)
    for site in SITES:
        local, train = torch.zeros(LAYOUT.numel), Pull()
        for step in range(95):
            train(site, local, step, 1)
        assert torch.equal(streaming.thetas[site], local)


@pytest.mark.parametrize("overlap", [0, 1, 5, 9])
def test_each_fragment_is_sent_once_per_period_and_one_at_a_time(overlap: int) -> None:
    streaming = Streaming(engine(), Pull(), settings((0, 10, 20), overlap, 0.5))
    streaming.run_steps(30 * 4)
    streaming.finish()
    assert streaming.num_syncs == [4, 4, 4]
    assert streaming.in_flight_max == 1


def test_mixing_half_keeps_half_of_the_own_progress() -> None:
    streaming = Streaming(engine(), Pull(), settings((0,), 0, 0.5))
    streaming.run_steps(29)
    before = streaming.thetas["a"].clone()
    Pull()("a", before, 29, 1)
    streaming.run_steps(1)
    torch.testing.assert_close(streaming.thetas["a"], 0.5 * before + 0.5 * streaming.engine.anchor)


@pytest.mark.parametrize("bad", [{"overlap_steps": 30}, {"alpha": 1.5}, {"offsets": (1, 2)}])
def test_contradictory_settings_are_config_errors(bad: dict[str, object]) -> None:
    good: dict[str, object] = {
        "fragments": ((0,),),
        "offsets": (0,),
        "inner_steps": 30,
        "overlap_steps": 0,
        "alpha": 0.5,
    }
    with pytest.raises(ConfigError):
        StreamingSettings(**{**good, **bad})  # type: ignore[arg-type]
