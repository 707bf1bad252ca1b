"""A config.json with a field that transformers refuses, or that makes it take all memory: one short sentence."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.config.footprint.counts import model_parameters
from dilocoxd.config.hugging_face import CONFIG_CHARACTERS_MAX, DEPTH_MAX, canonical_config, sizes
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, bounds
from dilocoxd.models.build import check_model
from dilocoxd.models.hf_check import tiny_config
from dilocoxd.models.hf_cut import config_object, library_config, new_model
from dilocoxd.outerworker.plan import make_plan
from tests.unit.models.families import FAMILY_CONFIGS

LLAMA = FAMILY_CONFIGS["llama tied"]
SENTENCE_MAX = 700
EXPERTS_TOLERANCE = 0.05
"""What chooses among experts is not counted: a row of the width for each, a thirtieth of these tiny ones."""
ROTARY = {"rope_type": "default", "rope_theta": 10000}


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("hidden_act", 5, "hidden_act"),
        ("rope_scaling", 5, "rope_parameters"),
        ("rms_norm_eps", "x", "rms_norm_eps"),
        ("initializer_range", -1, "initializer_range"),
        ("head_dim", 7, "head_dim"),
        ("layer_types", 5, "layer_types"),
        ("layer_types", ["x", "y"], "layer_types"),
        ("layer_types", ["full_attention"], "layer_types"),
        ("pad_token_id", 100_000, "Padding_idx"),
        ("head_dim", -8, "negative dimension"),
        ("head_dim", 0, "ZeroDivisionError"),
    ],
)
def test_a_field_that_the_library_refuses_is_one_sentence(field: str, value: object, word: str) -> None:
    family = {"model_type": "qwen3"} if field == "layer_types" else {}
    with pytest.raises(ConfigError, match=rf"config\.json.*{word}") as refused:
        new_model(config_object(FAMILY_CONFIGS["llama tied"] | family | {field: value}))
    assert "\n" not in str(refused.value)


def described(table: dict[str, Any]) -> Manifest:
    """A run of this config.json, as a peer would serve it."""
    model = {"kind": "hf", "config": canonical_config(table), "seq_len": 16, **sizes(table)}
    tables = {
        "run": {"name": "test"},
        "data": {"corpus": "english"},
        "inner": {"lr": 1e-3, "total_steps": 9, "batch_sequences": 4, "microbatches": 2},
        "strategy": {"inner_steps": 4},
        "model": model,
    }
    return manifest_from_tables(tables, source="test")


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rms_norm_eps", math.nan, "rms_norm_eps' = nan, which is no finite number; give one"),
        ("rope_scaling", {"factor": [1.0, math.inf]}, "rope_scaling' = inf, which is no finite number"),
        ("rope_theta", 10**4000, r"rope_theta' = 10{79}\.\.\., which no model has; give a smaller number"),
        ("x", nested(DEPTH_MAX + 1), "more than 8 tables in each other; remove it"),
        ("x", nested(900), "more than 8 tables in each other; remove it"),
        ("attribute_map", {"num_hidden_layers": "x"}, "attribute_map: the library would read other sizes"),
        ("num_labels", "1" * 100_000, "num_labels = '1"),
        ("model_type", "x" * 100_000, "model_type 'x"),
        ("num_hidden_layers", [1] * 10_000, r"no usable num_hidden_layers or n_layer \(\[1"),
    ],
)
def test_values_that_no_model_has_are_one_short_sentence(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        described(LLAMA | {field: value})
    assert len(str(refused.value)) < SENTENCE_MAX


def test_what_lies_in_a_table_as_deep_as_may_be_is_taken() -> None:
    assert str(nested(DEPTH_MAX)).replace(" ", "") in canonical_config(LLAMA | {"x": nested(DEPTH_MAX)})


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("smollm3", {"no_rope_layer_interval": 0}, "ZeroDivisionError"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "ZeroDivisionError"),
        ("llama", {"return_dict": False}, "AttributeError"),
        ("llama", {"hidden_act": "x" * (CONFIG_CHARACTERS_MAX // 2)}, "KeyError: 'xxx"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "TypeError"),
    ],
)
def test_whatever_the_library_raises_is_one_short_sentence(family: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        check_model(ModelConfig.of_run(described(FAMILY_CONFIGS[family] | change)))
    assert len(str(refused.value)) < SENTENCE_MAX and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("gpt_neox", {"rope_parameters": ROTARY | {"partial_rotary_factor": 1e9}}),
        ("gpt_neox", {"rotary_pct": 1e12}),
        ("phi3", {"partial_rotary_factor": 1e9}),
        ("deepseek_v3", {"n_shared_experts": 10**7}),
    ],
)
def test_what_asks_for_all_memory_is_one_sentence(
    family: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MEMORY_BYTES_MAX", 1 << 30)
    with pytest.raises(ConfigError, match=rf"a tiny {family} of this config.json takes more than 1 GiB of memory; cor"):
        check_model(ModelConfig.of_run(described(FAMILY_CONFIGS[family] | change)))
    assert peak_bytes() < 4 << 30, "of this process, with the libraries and what other tests took"


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) << 10


def test_bounds_end_with_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    before = bounds.resource.getrlimit(bounds.resource.RLIMIT_DATA)
    monkeypatch.setattr(bounds, "SECONDS_MAX", 0.05)
    words = r"a tiny llama of this config.json takes more than 0.05 s of CPU time; correct"
    with pytest.raises(ConfigError, match=words), bounds.LibraryBounds("llama"):
        while True:
            pass
    assert bounds.resource.getrlimit(bounds.resource.RLIMIT_DATA) == before
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_layers_under_a_name_that_the_library_does_not_read_are_refused() -> None:
    """The manifest bounds those that a run reads; transformers built its default, or what it knows by another name."""
    table = {name: value for name, value in LLAMA.items() if name != "num_hidden_layers"} | {"n_layer": 4}
    with pytest.raises(ConfigError, match=r"reads num_hidden_layers = 32 in this config.json, a run 4; give it as num"):
        library_config(tiny_config(table))
    library_config(tiny_config(FAMILY_CONFIGS["gpt2"] | {"num_hidden_layers": 4, "n_layer": 10**7}))


@pytest.mark.parametrize(
    ("family", "change"),
    [("llama", {"head_dim": 1 << 22}), ("gpt2", {"n_positions": 10**7}), ("deepseek_v3", {"q_lora_rank": 10**7})],
)
def test_a_model_far_larger_than_its_sizes_say_is_refused(family: str, change: dict[str, Any]) -> None:
    """Memory and disk are compared with the sizes, before anything is built."""
    with pytest.raises(ConfigError, match=r"makes \d{9,} parameters, and its sizes say about \d{4,6}; use the config"):
        make_plan(described(FAMILY_CONFIGS[family] | change))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_experts_are_counted_before_anything_is_built(family: str) -> None:
    table = FAMILY_CONFIGS[family]
    name = next(one for one in ("num_experts", "num_local_experts", "n_routed_experts") if one in table)
    manifest = described(table | {name: 4096})
    counted = model_parameters(manifest)
    assert counted == pytest.approx(make_plan(manifest).layout.numel, rel=EXPERTS_TOLERANCE)
