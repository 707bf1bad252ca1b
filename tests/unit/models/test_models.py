"""Models: names and order, stages that equal the full transformers model, cuts, genesis bits."""

import hashlib
import itertools

import pytest
import torch
from transformers import AutoModelForCausalLM

from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageSpan, build_stage, cut_stages, init_parameter, init_std, param_specs
from dilocoxd.models.config import HF_MODEL_TYPES
from dilocoxd.models.hf import check_family, transformers_config

SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 64,
    "seq_len": 24,
}
CPU = torch.device("cpu")


def make(kind: str, **changes: object) -> ModelConfig:
    return ModelConfig(kind=kind, **{**SIZES, **changes})  # type: ignore[arg-type]


def chain(config: ModelConfig, weights: dict[str, torch.Tensor], ids: torch.Tensor, num_stages: int) -> torch.Tensor:
    hidden = ids
    with torch.no_grad():
        for span in cut_stages(config, num_stages):
            stage = build_stage(config, span, device=CPU).eval()
            for name, param in stage.global_parameters():
                param.copy_(weights[name])
            hidden = stage(hidden)
    return hidden


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("kind", ["native", *HF_MODEL_TYPES])
def test_chain_of_stages_equals_the_full_transformers_model(kind: str, num_stages: int) -> None:
    torch.manual_seed(3)
    reference = make("llama" if kind == "native" else kind)
    full = AutoModelForCausalLM.from_config(transformers_config(reference), attn_implementation="sdpa").eval()
    ids = torch.randint(0, 96, (2, 24))
    with torch.no_grad():
        expected = full(input_ids=ids).logits
    assert torch.equal(chain(make(kind), full.state_dict(), ids, num_stages), expected)


@pytest.mark.parametrize("kind", ["native", *HF_MODEL_TYPES])
def test_names_shapes_and_order_are_those_of_transformers(kind: str) -> None:
    reference = make("llama" if kind == "native" else kind)
    full = AutoModelForCausalLM.from_config(transformers_config(reference))
    expected = [(name, tuple(param.shape)) for name, param in full.named_parameters()]
    assert [(spec.name, spec.shape) for spec in param_specs(make(kind))] == expected


@pytest.mark.parametrize("kind", HF_MODEL_TYPES)
def test_start_up_check_accepts_the_white_list(kind: str) -> None:
    check_family(make(kind))


def test_start_up_check_refuses_options_that_break_the_chain() -> None:
    with pytest.raises(ConfigError, match="cannot build a qwen2"):
        check_family(make("qwen2", extra={"rope_parameters": {"rope_type": "no such type"}}))


def test_extra_may_not_repeat_a_field_of_the_model_section() -> None:
    with pytest.raises(ConfigError, match="remove it from extra"):
        transformers_config(make("llama", extra={"hidden_size": 12}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "gpt2"}, "not supported"),
        ({"num_heads": 5}, "not a multiple"),
        ({"num_kv_heads": 3}, "not a multiple"),
        ({"num_heads": 16, "num_kv_heads": 16}, "even head size"),
        ({"num_layers": 0}, "at least 1"),
        ({"extra": {"sliding_window": 4}}, "remove it"),
    ],
)
def test_impossible_model_is_one_clear_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(str(changes.pop("kind", "native")), **changes)


def test_cut_gives_the_stage_with_the_head_fewer_layers() -> None:
    spans = cut_stages(make("native", num_layers=8, vocab_size=8000), 2)
    assert [span.first_layer for span in spans] == [0, spans[0].end_layer]
    assert spans[-1].end_layer == 8
    assert spans[1].end_layer - spans[1].first_layer < spans[0].end_layer - spans[0].first_layer


@pytest.mark.parametrize("num_layers", range(1, 9))
def test_cut_is_contiguous_and_leaves_no_stage_empty(num_layers: int) -> None:
    for num_stages in range(1, num_layers + 1):
        spans = cut_stages(make("native", num_layers=num_layers), num_stages)
        assert spans[0].first_layer == 0
        assert spans[-1].end_layer == num_layers
        assert all(span.end_layer > span.first_layer for span in spans)
        assert all(a.end_layer == b.first_layer for a, b in itertools.pairwise(spans))


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        cut_stages(make("native"), 4)


def test_genesis_bits_are_pinned() -> None:
    # A change of this digest changes state 0 of every run: it is a protocol change.
    out = torch.empty(300_000)
    init_parameter("model.layers.0.mlp.up_proj.weight", (600, 500), 17, out)
    assert (
        hashlib.sha256(out.numpy().tobytes()).hexdigest()
        == "43b46900be7d017172986cf6327744c6de72fa44a1b511049a8d67c339418649"
    )


def test_genesis_does_not_depend_on_threads_or_order() -> None:
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        out = torch.empty(20_000)
        init_parameter("b", (200, 100), 1, torch.empty(20_000))
        init_parameter("a", (200, 100), 1, out)
        results.append(out)
    torch.set_num_threads(1)
    assert torch.equal(results[0], results[1])


def test_genesis_is_bell_shaped_with_the_asked_deviation() -> None:
    out = torch.empty(1_000_000)
    init_parameter("a", (1000, 1000), 5, out, std=0.02)
    assert abs(float(out.std()) - 0.02) < 1e-4
    assert abs(float(out.mean())) < 1e-4
    kurtosis = float(((out / out.std()) ** 4).mean())
    assert 2.6 < kurtosis < 2.8  # sum of four uniforms: 3 - 6/5/4 = 2.7; a normal has 3


def test_genesis_of_vectors_is_one_and_of_biases_zero() -> None:
    out = torch.empty(4)
    init_parameter("model.norm.weight", (4,), 5, out)
    assert out.tolist() == [1.0] * 4
    init_parameter("model.layers.0.self_attn.q_proj.bias", (4,), 5, out)
    assert out.tolist() == [0.0] * 4


def test_residual_projections_start_smaller() -> None:
    assert init_std("model.layers.3.self_attn.o_proj.weight", 0.02, 8) == pytest.approx(0.005)
    assert init_std("model.layers.3.self_attn.q_proj.weight", 0.02, 8) == 0.02


def test_wrong_buffer_for_genesis_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 6 float32"):
        init_parameter("a", (2, 3), 1, torch.empty(5))


def test_stage_owns_only_its_span() -> None:
    stage = build_stage(make("native"), StageSpan(1, 2, 2, 3), device=CPU)
    names = [name for name, _ in stage.global_parameters()]
    assert all(name.startswith(("model.layers.2.", "model.norm.", "lm_head.")) for name in names)
