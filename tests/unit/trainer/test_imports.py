"""A site of one rank trains without the parts of torch that are as large as the rest, and with the same bits.

The worker forks warm (ADR 9): what is imported after the fork is paid by every generation, before it by every start.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

import pytest
import torch
import torch.distributed as dist

from dilocoxd.models import ModelConfig
from dilocoxd.trainer.data.targets import PartLoss, cross_entropy
from dilocoxd.trainer.optimizer import InnerOptimizer, OptimizerConfig
from dilocoxd.trainer.pipeline import Accumulation, Pipeline, PipelineConfig

HEAVY = ("torch._dynamo", "sympy", "torch.distributed.pipelining", "torch.distributed.tensor", "transformers")
MODEL = ModelConfig("native", 64, 16, 2, 2, 2, 32, 8)
SEQUENCES = 6
TRAINING = f"""
import sys, torch, torch.distributed as dist
import dilocoxd.outerworker.main, dilocoxd.trainer.main
from dilocoxd.models import ModelConfig
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig
before = set(sys.modules)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
config = PipelineConfig(1, batch_sequences=4, num_microbatches=2)
pipeline = Pipeline(ModelConfig("native", 64, 16, 2, 2, 2, 32, 8), config, device=torch.device("cpu"))
for _, parameter in pipeline.parameters():
    torch.nn.init.normal_(parameter, std=0.02)
training = InnerTraining(pipeline, OptimizerConfig(kind=sys.argv[1]))
ids = torch.randint(0, 64, (4, 8))
loss, squares = training.gradients(ids, ids)
training.update(squares)
pipeline.losses([(ids, ids)])
dist.destroy_process_group()  # or a thread of gloo may outlive the interpreter, and abort
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
"""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_one_rank_trains_without_what_it_does_not_need(optimizer: str) -> None:
    done = subprocess.run([sys.executable, "-c", TRAINING, optimizer], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_a_batch_give_the_bits_of_torchs_schedule(parts: int) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    config = PipelineConfig(1, batch_sequences=SEQUENCES, num_microbatches=parts)
    pipeline = Pipeline(MODEL, config, device=torch.device("cpu"))
    module = pipeline.modules[0]
    torch.manual_seed(1)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    ids, targets = (torch.randint(0, MODEL.vocab_size, (SEQUENCES, MODEL.seq_len)) for _ in range(2))

    losses: list[torch.Tensor] = []
    Accumulation(module, parts, PartLoss(parts)).step(ids, target=targets, losses=losses, return_outputs=False)
    ours = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    module.zero_grad()

    example = torch.zeros((SEQUENCES // parts, MODEL.seq_len), dtype=torch.int64, device="meta")
    logits = torch.empty((*example.shape, MODEL.vocab_size), device="meta", requires_grad=True)
    stage = PipelineStage(module, 0, 1, torch.device("cpu"), input_args=(example,), output_args=(logits,))
    expected: list[torch.Tensor] = []
    Schedule1F1B(stage, parts, loss_fn=cross_entropy).step(ids, target=targets, losses=expected, return_outputs=False)
    theirs = [parameter.grad for parameter in module.parameters()]
    assert len(ours) == len(theirs)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    assert [one.item() for one in losses] == [one.item() for one in expected]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_steps_give_the_bits_of_torchs_own_optimizer(kind: Literal["adamw", "muon"]) -> None:
    torch.manual_seed(2)
    start, gradients = torch.randn(24, 16), torch.randn(5, 24, 16)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    config = OptimizerConfig(lr=0.01, kind=kind)
    if kind == "adamw":
        betas = (config.beta1, config.beta2)
        reference: torch.optim.Optimizer = torch.optim.AdamW(
            [theirs], lr=0.01, betas=betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
        )
    else:
        reference = torch.optim.Muon(
            [theirs], lr=0.01, weight_decay=config.weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        )
    optimizer = InnerOptimizer({"model.layers.0.mlp.up_proj.weight": ours}, config)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step(0.01)
        reference.step()
        assert torch.equal(ours, theirs)
    optimizer.zero_grad()
    assert ours.grad is None
