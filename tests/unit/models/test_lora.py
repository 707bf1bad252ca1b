"""LoRA: own modules in the generic cut equal peft's layers to the bit, and what is frozen stays as it was."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

from dilocoxd.config.hugging_face import canonical_config, sizes
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage, init_of_model, param_specs
from dilocoxd.models.config import Adapter
from dilocoxd.models.frozen import FrozenModel, fill_frozen
from dilocoxd.models.pretrained import Pretrained
from tests.harness.published.directory import publish
from tests.unit.models.families import FAMILY_CONFIGS

CPU = torch.device("cpu")
RANK, ALPHA = 4, 12.0
FAMILIES = ("llama tied", "qwen3 wide heads", "gemma3_text", "mixtral", "deepseek_v3", "gpt_neox", "gpt2", "phi3")


def adapted(label: str, *targets: str) -> ModelConfig:
    table = FAMILY_CONFIGS[label]
    config = ModelConfig(kind="hf", seq_len=24, config=canonical_config(table), **sizes(table))
    return replace(config, adapter=Adapter(RANK, ALPHA, targets))


def values(config: ModelConfig) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    return {spec.name: torch.randn(spec.shape, generator=random) * 0.05 for spec in param_specs(config)}


def stages(config: ModelConfig, source: Pretrained, weights: dict[str, torch.Tensor]) -> list[StageModule]:
    half = config.num_layers // 2
    spans = [StageSpan(0, 2, 0, half), StageSpan(1, 2, half, config.num_layers)]
    made = [build_stage(config, span, device=CPU).eval() for span in spans]
    fill_frozen(made, source)
    with torch.no_grad():
        for stage in made:
            for name, parameter in stage.global_parameters():
                parameter.copy_(weights[name])
    return made


@pytest.mark.parametrize("label", FAMILIES)
def test_stages_with_an_adapter_equal_peft_to_the_bit(tmp_path: Path, label: str) -> None:
    library = publish(tmp_path / "model", FAMILY_CONFIGS[label])
    config = adapted(label)
    weights = values(config)
    targets = {name.rsplit(".lora_", 1)[0].rpartition(".")[2] for name in weights}
    theirs = get_peft_model(
        library, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=sorted(targets), task_type="CAUSAL_LM")
    ).eval()
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            own = name.removeprefix("base_model.model.").replace(".default.", ".")
            parameter.data.copy_(weights.pop(own))
    assert not weights, "peft has no such parameters"
    ids = torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(1))
    first, last = stages(config, Pretrained(tmp_path / "model"), values(config))
    with torch.no_grad():
        expected = theirs(input_ids=ids, use_cache=False).logits
        assert torch.equal(last(first(ids)), expected)
        theirs.disable_adapter_layers()
        assert not torch.equal(theirs(input_ids=ids, use_cache=False).logits, expected), "the adapter does nothing"


def test_only_the_adapter_gets_gradients(tmp_path: Path) -> None:
    publish(tmp_path / "model", FAMILY_CONFIGS["llama tied"])
    config = adapted("llama tied", "q_proj", "v_proj")
    first, last = stages(config, Pretrained(tmp_path / "model"), values(config))
    assert last.borrowed_embedding() is None
    assert first.own_embedding() is None
    ids = torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(1))
    functional.cross_entropy(last(first(ids)).flatten(0, 1), ids.flatten()).backward()
    for stage in (first, last):
        trained = [parameter for _, parameter in stage.global_parameters()]
        assert len(trained) == 8
        assert all(parameter.grad is not None for parameter in trained)
        assert all(parameter.grad is None for _, parameter in stage.frozen_parameters())


def test_a_fresh_adapter_changes_nothing(tmp_path: Path) -> None:
    library = publish(tmp_path / "model", FAMILY_CONFIGS["llama"])
    config = adapted("llama")
    weights = {}
    for spec in param_specs(config):
        flat = torch.empty(spec.numel)
        init_of_model(config, spec, 7, flat)
        weights[spec.name] = flat.view(spec.shape)
    narrow = weights["model.layers.0.self_attn.q_proj.lora_A.weight"]
    assert float(narrow.std()) == pytest.approx((3 * narrow.shape[1]) ** -0.5, rel=0.2)
    first, last = stages(config, Pretrained(tmp_path / "model"), weights)
    ids = torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(last(first(ids)), library.eval()(input_ids=ids, use_cache=False).logits)


@pytest.mark.parametrize(
    ("targets", "words"),
    [(("qkv",), "no linear layer is called 'qkv'; choose from down_proj, gate_proj"), (("head",), "no linear layer")],
)
def test_targets_that_are_not_there(targets: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        param_specs(adapted("llama", *targets))


def test_names_that_peft_takes_for_experts_are_no_targets() -> None:
    assert {spec.name.rpartition(".lora_")[0].rpartition(".")[2] for spec in param_specs(adapted("qwen3_moe"))} == {
        "q_proj", "k_proj", "v_proj", "o_proj",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="choose from k_proj, o_proj, q_proj, v_proj"):
        param_specs(adapted("qwen3_moe", "up_proj"))


def test_the_frozen_model_is_the_runs_by_hash(tmp_path: Path) -> None:
    publish(tmp_path / "model", FAMILY_CONFIGS["llama"])
    (tmp_path / "run").mkdir()
    hashes = Pretrained(tmp_path / "model").hashes(lambda _: None)
    told: list[str] = []
    frozen = FrozenModel(str(tmp_path / "model"), hashes, tmp_path / "run")
    frozen.open(told.append)
    frozen.open(told.append)
    assert told == ["hashing model.safetensors"], "what did not change is not read again"
    path = tmp_path / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="that of the run's model is"):
        frozen.open(told.append)
    path.unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        frozen.open(told.append)
    with pytest.raises(ConfigError, match="join with --init DIR"):
        FrozenModel("", hashes, tmp_path / "run").open()
