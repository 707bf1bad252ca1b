"""Streaming in the trainer is that of the single-process engine, bit for bit; what others moved costs nothing."""

import torch
from torch import Tensor, nn

from dilocoxd.compress.deferred import Deferred
from dilocoxd.compress.fragments import Fragments, stretch
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.outer.feedback import ErrorFeedback
from dilocoxd.trainer.parameters.mixing import MixedParameters
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.reference.engine import Engine, Recipe
from tests.reference.streaming import Streaming, StreamingSettings
from tests.unit.outer.toys import nesterov

LAYOUT = make_layout([ParamSpec("model.layers.0.w", (90, 50)), ParamSpec("model.norm.weight", (4,))], 4096)
SITES = ("a", "b")
FRAGMENTS, STEPS, OVERLAP, ALPHA = 3, 4, 2, 0.25


def make_engine() -> Engine:
    transform = Deferred(Fragments(LAYOUT, codec_from_name("e3m0"), FRAGMENTS))
    recipe = Recipe(transform, nesterov(0.4, 0.9), ErrorFeedback("none"), False, True)
    return Engine.start(recipe, torch.zeros(LAYOUT.numel), SITES)


def train(site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
    centre = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(ord(site)))
    for _ in range(num_steps):
        theta.sub_((theta - centre) * 0.1)


class SiteTrainer:
    """What the trainer of one site does."""

    def __init__(self, name: str, anchor: Tensor) -> None:
        self.name = name
        self.params = [(spec.name, nn.Parameter(torch.zeros(spec.shape))) for spec in LAYOUT.params]
        self.flat = MixedParameters(self.params, LAYOUT, FRAGMENTS, ALPHA)
        self.flat.replace(anchor)
        self.phase = anchor.clone()

    @property
    def theta(self) -> Tensor:
        return torch.cat([param.detach().reshape(-1) for _, param in self.params])

    @torch.no_grad()
    def train(self, steps: int) -> None:
        theta = self.theta
        train(self.name, theta, 0, steps)
        nn.utils.vector_to_parameters(theta, [param for _, param in self.params])

    def close(self) -> Tensor:
        self.flat.subtract_from(self.phase)
        self.flat.mark_base()
        return self.phase

    def take(self, anchor: Tensor, mixed_round: int | None) -> None:
        self.flat.mix(anchor, mixed_round)
        self.phase = anchor.clone()


def test_trainers_and_engine_agree() -> None:
    everything = tuple(range(len(LAYOUT.segments)))
    offsets = tuple(STEPS * (FRAGMENTS - 1 - index) for index in range(FRAGMENTS))
    settings = StreamingSettings((everything,) * FRAGMENTS, offsets, STEPS * FRAGMENTS, OVERLAP, ALPHA)
    streaming, shared = Streaming(make_engine(), train, settings), make_engine()
    trainers = {name: SiteTrainer(name, shared.anchor) for name in SITES}
    for trainer in trainers.values():
        trainer.train(STEPS)
    for index in range(3 * FRAGMENTS):
        offer = shared.offer({name: trainer.close() for name, trainer in trainers.items()})
        for trainer in trainers.values():
            trainer.train(OVERLAP)
        shared.recipe.transform.tune(index, 0)
        shared.commit(offer)
        for trainer in trainers.values():
            trainer.take(shared.anchor, index)
        streaming.run_steps(STEPS if index == 0 else STEPS - OVERLAP)
        streaming.run_steps(OVERLAP)
        assert torch.equal(shared.anchor, streaming.engine.anchor), index
        for name, trainer in trainers.items():
            assert torch.equal(trainer.theta, streaming.thetas[name]), (index, name)
            trainer.train(STEPS - OVERLAP)
    assert streaming.num_syncs == [3, 3, 3]
    assert not torch.equal(trainers["a"].theta, trainers["b"].theta)


def test_only_the_fragment_moves_and_only_what_holds_our_progress_is_mixed() -> None:
    shared = make_engine()
    here, away = SiteTrainer("a", shared.anchor), SiteTrainer("b", shared.anchor)
    for trainer in (here, away):
        trainer.train(STEPS)
    before, own = shared.anchor.clone(), away.theta
    shared.recipe.transform.tune(1, 0)
    shared.commit(shared.offer({"a": here.close()}))
    moved = torch.cat([torch.arange(s.start, s.stop)[stretch(s, FRAGMENTS, 1)] for s in LAYOUT.segments])
    rest = torch.ones(LAYOUT.numel, dtype=torch.bool)
    rest[moved] = False
    assert torch.equal(shared.anchor[rest], before[rest]) and bool((shared.anchor[moved] != 0).any())
    theta = here.theta
    here.take(shared.anchor, 1)
    away.take(shared.anchor, None)
    torch.testing.assert_close(away.theta - shared.anchor, own - before, rtol=0, atol=1e-6)
    torch.testing.assert_close(here.theta[moved], ALPHA * theta[moved] + (1 - ALPHA) * shared.anchor[moved])
    assert torch.equal(here.theta[rest], theta[rest])


def test_fragments_cover_every_element_once() -> None:
    for segment in LAYOUT.segments:
        covered = [i for k in range(FRAGMENTS) for i in range(segment.numel)[stretch(segment, FRAGMENTS, k)]]
        assert covered == list(range(segment.numel))
