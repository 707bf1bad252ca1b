"""Runs whose module dilocoxd cannot build: what has no meaning there is refused in one sentence, with what to do."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.sections.own_module import PLACEHOLDER_SIZES, shapes_text
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import site_problems
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import create_run_dir

SMALL = [("weight", (3, 2)), ("bias", (3,))]


def external_manifest(shapes: list[tuple[str, tuple[int, ...]]] = SMALL, **strategy: object) -> Manifest:
    config = shapes_text(shapes)
    tables = preset_tables("tiny")
    tables["strategy"] |= strategy
    tables["model"] = {"kind": "external", "config": config, "seq_len": 32, **PLACEHOLDER_SIZES}
    return manifest_from_tables(tables, source="test")


@pytest.mark.parametrize(
    ("command", "options", "advice"),
    [
        ("evaluate", (), "evaluate="),
        ("export", ("--out", "out"), "anchor.safetensors"),
        ("generate", (), "anchor.safetensors"),
        ("verify", (), "dilocoxd log verify RUN_DIR"),
    ],
)
def test_commands_that_must_build_the_model_say_that_they_cannot(
    command: str, options: tuple[str, ...], advice: str, tmp_path: Path
) -> None:
    path = create_run_dir(tmp_path / "run", external_manifest(), SiteConfig()).path
    paths = (str(tmp_path), str(path)) if command == "verify" else (str(path),)
    with pytest.raises(ConfigError, match=r"run: model\.kind = 'external', a module that only") as caught:
        CliRunner().invoke(cli, [command, *paths, *options], standalone_mode=False, catch_exceptions=False)
    assert caught.value.exit_code == 78
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shard", 2),
        ("stages", 2),
        ("replicate", 2),
        ("stages_per_process", 2),
        ("activation_checkpointing", "block"),
        ("loss_chunk_tokens", 512),
    ],
)
def test_a_loop_of_ones_own_is_not_cut_by_the_site(field: str, value: object) -> None:
    site = SiteConfig.model_validate({"parallel": {field: value}})
    (problem,) = site_problems(external_manifest(), site)
    name = "pipeline" if field == "stages" else field
    assert problem.startswith(
        f"parallel.{name} = {value!r}, but the training loop of this run is a process of your own"
    )


def test_what_a_batch_is_the_loop_alone_says() -> None:
    assert not site_problems(external_manifest(), SiteConfig.model_validate({"parallel": {"microbatches": 3}}))


@pytest.mark.parametrize(
    ("shapes", "elements"),
    [
        ([("embed.weight", (50_000, 1024)), ("blocks.0.mix.weight", (4096, 1024))], 4096 * 1024),
        ([("mix.weight", (2048, 1024)), ("scale", (1 << 23,))], 2048 * 1024),
        ([("blocks.0.mix.weight", (1000, 400, 3))], 293 * 4096),
        ([("blocks.0.mix.weight", (20_000, 20_000))], 1 << 26),
        ([("scale", (4,))], 1 << 20),
    ],
)
def test_low_rank_sees_whole_matrices_of_the_described_module(
    shapes: list[tuple[str, tuple[int, ...]]], elements: int
) -> None:
    manifest = external_manifest(shapes, transform="lowrank", lowrank_r=64, segment_elements_max=0)
    assert manifest.strategy.segment_elements_max == elements
