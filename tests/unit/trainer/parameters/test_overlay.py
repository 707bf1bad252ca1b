"""Eager updates in the trainer are those of the single-process engine, bit for bit, and local to the site."""

import torch
from torch import Tensor, nn

from dilocoxd.trainer.parameters.overlay import EagerParameters
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.reference.phases import Phases
from tests.unit.outer.toys import engine, nesterov

LAYOUT = make_layout([ParamSpec("model.layers.0.w", (6, 5)), ParamSpec("model.norm.weight", (4,))], 4096)
SITES = ("a", "b")
PHASES, STEPS = 6, 3


def centre(site: str) -> Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(ord(site)))


def train(site: str, theta: Tensor, first_step: int, num_steps: int) -> None:
    for _ in range(num_steps):
        theta.sub_((theta - centre(site)) * 0.1)


class SiteTrainer:
    """What the trainer of one site does at boundaries."""

    def __init__(self, name: str, anchor: Tensor) -> None:
        self.name = name
        self.params = [(spec.name, nn.Parameter(torch.zeros(spec.shape))) for spec in LAYOUT.params]
        self.flat = EagerParameters(self.params, LAYOUT, nesterov(0.4, 0.9))
        self.flat.replace(anchor)
        self.phase = anchor.clone()

    @property
    def theta(self) -> Tensor:
        return torch.cat([param.detach().reshape(-1) for _, param in self.params])

    @torch.no_grad()
    def close(self) -> Tensor:
        theta = self.theta
        train(self.name, theta, 0, STEPS)
        nn.utils.vector_to_parameters(theta, [param for _, param in self.params])
        self.flat.subtract_from(self.phase)
        self.flat.mark_base()
        return self.phase

    def begin(self, anchor: Tensor, num_contributors: int) -> None:
        self.flat.begin(anchor, num_contributors)
        self.phase = anchor.clone()


def test_trainers_and_engine_agree() -> None:
    phases = Phases(engine(torch.zeros(LAYOUT.numel), SITES, nesterov(0.4, 0.9)), train, "eager")
    shared = engine(torch.zeros(LAYOUT.numel), SITES, nesterov(0.4, 0.9))
    trainers = {name: SiteTrainer(name, shared.anchor) for name in SITES}
    pending = None
    for _ in range(PHASES):
        updates = {name: trainer.close() for name, trainer in trainers.items()}
        if pending is not None:
            shared.commit(pending)
        pending = shared.offer(updates)
        for trainer in trainers.values():
            trainer.begin(shared.anchor, len(SITES))
        phases.run_phase(STEPS)
        assert torch.equal(shared.anchor, phases.engine.anchor)
        for name, trainer in trainers.items():
            assert torch.equal(trainer.theta, phases.sites[name].theta), name
    assert not torch.equal(trainers["a"].theta, trainers["b"].theta), "overlays are each site's own"


def test_an_anchor_out_of_turn_drops_the_overlay_and_an_unknown_group_adds_nothing() -> None:
    anchor = torch.zeros(LAYOUT.numel)
    trainer = SiteTrainer("a", anchor)
    trainer.close()
    trainer.begin(anchor, 0)
    assert torch.equal(trainer.theta, anchor)
    trainer.close()
    trainer.begin(anchor, 2)
    assert not torch.equal(trainer.theta, anchor)
    trainer.flat.replace(anchor + 1)
    assert torch.equal(trainer.theta, anchor + 1)
    trainer.phase = anchor + 1
    assert bool(trainer.close().abs().sum() > 0)
