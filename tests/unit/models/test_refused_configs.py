"""A config.json with a field that transformers refuses: one sentence that names the field."""

import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.models.hf_cut import config_object, new_model
from tests.unit.models.families import FAMILY_CONFIGS


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
