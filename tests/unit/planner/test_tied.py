"""Tied embeddings over a pipeline: what plan, check-config and the daemon count has the last stage's copy."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from dilocoxd.config.footprint.counts import counted
from dilocoxd.config.footprint.estimate import PARAMETER_BYTES, site_estimate
from dilocoxd.config.footprint.shape import SiteShape, shape_of
from dilocoxd.config.hugging_face import FAMILIES, canonical_config, has_tied_head, sizes
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.models.build import build_stage
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import cut_stages
from dilocoxd.models.hf_cut import config_object
from dilocoxd.planner.footprint import footprint

VOCABULARY, WIDTH = 32_000, 128
COPY = VOCABULARY * WIDTH
TABLE = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 256, "max_position_embeddings": 256,
}  # fmt: skip
ADAPTER = {"rank": 4, "base_name": "m", "base_files": {"model.safetensors": "ab" * 32}}


def run_of(*, is_tied: bool, **sections: dict[str, Any]) -> Manifest:
    table = {**TABLE, "tie_word_embeddings": is_tied}
    tables = preset_tables("small")
    tables["inner"]["optimizer"] = "adamw"
    tables["model"] = {"kind": "hf", "seq_len": 256, "config": canonical_config(table), **sizes(table)}
    for section, fields in sections.items():
        tables[section] = {**tables.get(section, {}), **fields}
    return manifest_from_tables(tables, source="tied" if is_tied else "untied")


@pytest.mark.parametrize(
    "shape",
    [
        SiteShape(2, 4, 2),
        SiteShape(2, 4, 2, schedule="zbvzerobubble", slices_per_process=2),
        SiteShape(2, 4, 2, shard=2),
        SiteShape(2, 4, 2, tensor=2),
    ],
    ids=["pipeline", "v", "shard", "tensor"],
)
def test_last_stage_holds_its_copy_of_the_embedding(shape: SiteShape) -> None:
    """The site of a tied model was told to need what it would without the copy: 33 MB less than it takes here."""
    tied, apart = run_of(is_tied=True), run_of(is_tied=False)
    assert footprint(apart, shape).parameters - footprint(tied, shape).parameters == COPY
    # A head of its own is optimised, too; what shards gather is the same, and they divide all else among them.
    assert of_trainers(apart, shape) - of_trainers(tied, shape) == (PARAMETER_BYTES["adamw"] - 8) * COPY


def of_trainers(manifest: Manifest, shape: SiteShape) -> int:
    """Bytes of all of them; with GPUs only those of the outer worker are in main memory."""
    whole, outer = (footprint(manifest, replace(shape, on_gpu=on_gpu)).copies_bytes for on_gpu in (False, True))
    return whole - outer


def test_what_is_counted_is_what_the_stage_has() -> None:
    manifest = run_of(is_tied=True)
    model = ModelConfig.from_section(manifest.model)
    stage = build_stage(model, cut_stages(model, 2)[1], device=torch.device("meta"))
    copy = stage.borrowed_embedding()
    assert copy is not None and copy.numel() == COPY
    one, two = (footprint(manifest, SiteShape(stages, 4, 2)) for stages in (1, 2))
    assert one.parameters == two.parameters, "it is one parameter all the same"
    assert counted(manifest, SiteShape(2, 4, 2)).slices[-1].copied == COPY
    assert counted(manifest, SiteShape(1, 4, 2)).slices[-1].copied == 0


def test_frozen_copy_under_an_adapter_is_its_value_alone() -> None:
    tied, apart = (run_of(is_tied=is_tied, lora=ADAPTER) for is_tied in (True, False))
    shape = SiteShape(2, 4, 2)
    assert footprint(tied, shape).copies_bytes == footprint(apart, shape).copies_bytes, "a frozen head is as large"
    alone = SiteShape(1, 4, 2)
    assert footprint(apart, alone).copies_bytes - footprint(tied, alone).copies_bytes == 4 * COPY


@pytest.mark.parametrize("parallel", [{}, {"pipeline": 2}, {"pipeline": 2, "shard": 2}, {"pipeline": 2, "tensor": 2}])
@pytest.mark.parametrize("lora", [{}, {"lora": ADAPTER}], ids=["whole", "adapter"])
def test_formula_and_plan_tell_the_same(parallel: dict[str, Any], lora: dict[str, Any]) -> None:
    manifest = run_of(is_tied=True, inner={"batch_sequences": 16, "microbatches": 4}, **lora)
    site = validated(SiteConfig, {"parallel": parallel}, source="test")
    quick, exact = site_estimate(manifest, site), footprint(manifest, shape_of(manifest, site))
    assert quick.node_bytes == pytest.approx(exact.node_bytes, rel=0.03)
    assert quick.state_bytes == pytest.approx(exact.state_bytes, rel=0.03)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_that_says_nothing_is_tied_as_the_library_has_it(family: str) -> None:
    for more in ({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}):
        table = {"model_type": family, **more}
        assert has_tied_head(table) == config_object(table).tie_word_embeddings
