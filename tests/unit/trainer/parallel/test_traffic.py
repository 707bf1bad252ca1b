"""What travels between the ranks of a site as bfloat16 does so, and what must stay float32 stays it."""

import torch
from torch import nn

from dilocoxd.models import ModelConfig, build_stage, cut_stages
from dilocoxd.models.stage import StageModule
from dilocoxd.trainer.parallel.traffic import NARROW, narrow_gathers, narrow_hidden

CONFIG = ModelConfig("native", 64, 32, 3, 4, 2, 48, 16)


def stages(count: int) -> list[StageModule]:
    torch.manual_seed(0)
    found = [build_stage(CONFIG, span, device=torch.device("cpu")) for span in cut_stages(CONFIG, count)]
    for stage in found:
        for parameter in stage.parameters():
            nn.init.normal_(parameter, std=0.05)
        narrow_hidden(stage)
    return found


def test_hidden_states_and_their_gradients_travel_in_16_bits_and_nothing_else_is() -> None:
    first, middle, last = stages(3)
    seen: list[torch.dtype] = []
    for stage in (middle, last):
        next(stage.blocks()).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    hidden = first(torch.zeros((2, 16), dtype=torch.int64))
    arrived = hidden.detach().requires_grad_()
    onward = middle(arrived)
    logits = last(onward)
    assert (hidden.dtype, onward.dtype, logits.dtype) == (NARROW, NARROW, torch.float32)
    assert seen == [torch.float32, torch.float32], "the residual stream of a stage"
    logits.sum().backward()
    assert arrived.grad is not None and arrived.grad.dtype == NARROW
    assert {p.grad.dtype for p in last.parameters() if p.grad is not None} == {torch.float32}


def test_one_stage_alone_tells_nothing_and_changes_nothing() -> None:
    (whole,) = stages(1)
    assert whole(torch.zeros((2, 16), dtype=torch.int64)).dtype == torch.float32


def test_norms_of_16_bits_compute_in_float32_and_learn() -> None:
    """As FSDP2 has them while a block is gathered: their parameters are bfloat16, what comes in is not."""
    (whole,) = stages(1)
    policy = narrow_gathers(whole)
    assert (policy.param_dtype, policy.reduce_dtype, policy.cast_forward_inputs) == (NARROW, torch.float32, False)
    block = next(whole.blocks())
    norm = block.get_submodule("input_layernorm")
    norm.weight = nn.Parameter(torch.randn(32).to(NARROW))
    narrow = norm.weight
    x = torch.randn(2, 32)
    out = norm(x)
    expected = nn.functional.rms_norm(x, (32,), narrow.detach().float(), CONFIG.norm_eps)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert norm.weight is narrow and narrow.grad is not None and float(narrow.grad.abs().min()) > 0
