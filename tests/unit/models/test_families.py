"""The generic cut: every family's chain of stages equals transformers' own model to the bit."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from dilocoxd.config.hugging_face import FAMILIES, canonical_config, idle_parameters, parse_config, positions, sizes
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageSpan, build_stage, cut_stages, init_of_model, param_specs
from dilocoxd.models.build import check_model
from dilocoxd.models.hf_check import chained, embedding_name, tiny_table
from dilocoxd.models.hf_cut import config_object, new_model
from tests.unit.models.families import FAMILY_CONFIGS

CPU = torch.device("cpu")


def model_of(label: str) -> ModelConfig:
    return described(FAMILY_CONFIGS[label])


def described(table: dict[str, Any]) -> ModelConfig:
    return ModelConfig(kind="hf", seq_len=24, config=canonical_config(table), **sizes(table))


def genesis(config: ModelConfig) -> dict[str, torch.Tensor]:
    weights = {}
    for spec in param_specs(config):
        flat = torch.empty(spec.numel)
        init_of_model(replace(config, init_std=0.1), spec, 7, flat)
        weights[spec.name] = flat.view(spec.shape)
    return weights


def test_every_family_of_the_list_is_tried() -> None:
    assert {table["model_type"] for table in FAMILY_CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("label", FAMILY_CONFIGS)
def test_stages_equal_the_library_to_the_bit(label: str) -> None:
    config = model_of(label)
    whole = new_model(config_object(parse_config(config.config))).eval()
    weights = genesis(config)
    missing, unexpected = whole.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    whole.tie_weights()
    ids = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = whole(input_ids=ids, use_cache=False).logits
        assert torch.equal(chained(config, weights, ids, embedding_name(whole)), expected)
    assert expected.std() > 1e-3, "the model says nothing"


@pytest.mark.parametrize("label", FAMILY_CONFIGS)
def test_names_and_order_are_those_of_the_library(label: str) -> None:
    config = model_of(label)
    with torch.device("meta"):
        whole = new_model(config_object(parse_config(config.config)))
    saved = set(whole.state_dict()) - ({"lm_head.weight"} if whole.config.tie_word_embeddings else set())
    names = [spec.name for spec in param_specs(config)]
    assert set(names) == saved
    trained = [name for name, _ in whole.named_parameters()]
    assert [name for name in names if name in trained] == trained


@pytest.mark.parametrize("label", FAMILY_CONFIGS)
def test_start_up_check_accepts_the_family_as_it_is_written_and_as_the_library_writes_it(label: str) -> None:
    """The library writes every field, also those that follow from others."""
    check_model(model_of(label))
    check_model(described(json.loads(config_object(FAMILY_CONFIGS[label]).to_json_string(use_diff=False))))


@pytest.mark.parametrize("label", ["mistral window", "gemma3_text", "qwen3 wide heads", "gpt_neox"])
def test_a_cache_gives_the_logits_of_the_whole_text(label: str) -> None:
    config = model_of(label)
    stage = build_stage(config, StageSpan(0, 1, 0, config.num_layers), device=CPU).eval()
    weights = genesis(config)
    ids = torch.randint(0, 96, (1, 20), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        for name, param in stage.global_parameters():
            param.copy_(weights[name])
        cache = stage.new_cache()
        parts = [stage.extend(ids[:, :9], cache)] + [stage.extend(ids[:, at : at + 1], cache) for at in range(9, 20)]
        assert torch.allclose(torch.cat(parts, dim=1), stage(ids), atol=1e-4)


@pytest.mark.parametrize("label", FAMILY_CONFIGS)
def test_experts_that_a_token_does_not_use_are_counted_as_the_library_has_them(label: str) -> None:
    config = model_of(label)
    experts = [spec for spec in param_specs(config) if ".experts." in spec.name and "bias" not in spec.name]
    assert idle_parameters(config.config) == sum(spec.numel for spec in experts) // 2, "two of four are used"


def test_gemma_norms_start_at_zero_and_biases_too() -> None:
    gemma = genesis(model_of("gemma3_text"))
    assert float(gemma["model.norm.weight"].abs().max()) == 0.0
    oss = genesis(model_of("gpt_oss"))
    for name in ("self_attn.sinks", "mlp.experts.gate_up_proj_bias", "mlp.router.bias", "self_attn.q_proj.bias"):
        assert float(oss[f"model.layers.0.{name}"].abs().max()) == 0.0
    assert float(oss["model.norm.weight"].min()) == 1.0


def test_the_tiny_model_has_the_same_kinds_of_layers() -> None:
    real = FAMILY_CONFIGS["gemma3_text"] | {
        "num_hidden_layers": 26, "vocab_size": 262_144, "hidden_size": 1152, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2,
    }  # fmt: skip
    tiny = tiny_table(real)
    assert tiny["layer_types"] == real["layer_types"][:4]
    assert sizes(tiny)["vocab_size"] == 64
    check_model(ModelConfig(kind="hf", seq_len=24, config=canonical_config(real), **sizes(real)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bert"}, "not supported"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"auto_map": {"AutoModel": "x.py"}}, "runs no such code"),
    ],
)
def test_what_no_run_can_have_is_one_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        canonical_config(FAMILY_CONFIGS["llama"] | changes)


def test_canonical_text_is_the_same_for_equal_models() -> None:
    table = FAMILY_CONFIGS["mistral no window"]
    text = canonical_config(dict(reversed(table.items())) | {"transformers_version": "4.1", "torch_dtype": "bfloat16"})
    assert text == canonical_config(table)
    assert parse_config(text)["sliding_window"] is None
    with pytest.raises(ValueError, match="canonical"):
        parse_config(json.dumps(table))
    assert positions(table) == 64


def test_more_stages_than_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        cut_stages(model_of("llama"), 5)
