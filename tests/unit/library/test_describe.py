"""What `describe` writes is what a run lays out; what no run can have is refused in a sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dilocoxd import describe
from dilocoxd.cli.model.origin import Origin
from dilocoxd.config.footprint.counts import model_parameters
from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.config.manifest import Manifest, manifest_from_canonical, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.sections.own_module import CHARACTERS_MAX, parse_shapes, shapes_text
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.library.site import Site
from dilocoxd.models import ModelConfig, param_specs
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.planner.footprint import footprint
from dilocoxd.store.rundir import create_run_dir


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight


def manifest_of(folder: Path) -> Manifest:
    return manifest_from_tables(Origin(module=folder).applied(preset_tables("tiny")), source="test")


def test_a_described_module_is_the_runs_layout(tmp_path: Path) -> None:
    module = Tied()
    describe(module, tmp_path / "m")
    manifest = manifest_of(tmp_path / "m")
    specs = param_specs(ModelConfig.of_run(manifest))
    expected = [("scale", ()), ("embed.weight", (11, 4)), ("norm.weight", (4,)), ("norm.bias", (4,))]
    assert [(spec.name, spec.shape) for spec in specs] == expected, "trained ones, tied ones once, no buffers"
    assert model_parameters(manifest) == make_plan(manifest).layout.numel == 1 + 44 + 8
    assert footprint(manifest, SiteShape(1, 1, 2)).parameters == 53
    values = load_file(tmp_path / "m" / "model.safetensors")
    assert torch.equal(values["embed.weight"], module.embed.weight)
    again = manifest_from_canonical(manifest.canonical_bytes(), source="peer")
    assert again.sha256() == manifest.sha256()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{}", "names no parameters"),
        ("[]", "names no parameters"),
        ("[1", "not JSON"),
        ('[["a"]]', "list of [name, shape]"),
        ('[["a",[2]],["a",[2]]]', "named twice"),
        ('[["a",[0]]]', "extent"),
        ('[["a",[true]]]', "extent"),
        ('[["a",[1048576,1048576,1048576]]]', "at most"),
        ('[["a", [2]]]', "canonical"),
        ('[["",[2]]]', "name"),
        ('[["a\\n",[2]]]', "name"),
        ('[["a",[1,1,1,1,1,1,1,1,1]]]', "extent"),
    ],
)
def test_a_table_from_somebody_else_is_checked(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part.replace("[", r"\[").replace("]", r"\]")):
        parse_shapes(text)


def test_a_table_has_an_end() -> None:
    with pytest.raises(ValueError, match=f"at most {CHARACTERS_MAX}"):
        shapes_text((f"parameter-{number}", (1,)) for number in range(CHARACTERS_MAX // 10))


def test_modules_that_no_run_can_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no parameter with requires_grad"):
        describe(nn.Tanh(), tmp_path)
    with pytest.raises(ConfigError, match=r"--module .*parameters.json.*describe"):
        manifest_of(tmp_path / "nothing")


def test_another_module_is_refused_before_it_connects(tmp_path: Path) -> None:
    describe(nn.Linear(2, 3), tmp_path / "m")
    run_dir = create_run_dir(tmp_path / "run", manifest_of(tmp_path / "m"), SiteConfig())
    for other, part in (
        (nn.Linear(2, 4), "weight is"),
        (nn.Linear(2, 3, bias=False), "parameter bias, your module has none"),
        (nn.Bilinear(2, 3, 1), "weight is"),
    ):
        with pytest.raises(ConfigError, match=part):
            Site(run_dir.path, other)
    with pytest.raises(ConfigError, match=r"no daemon takes a loop.*dilocoxd run"):
        Site(run_dir.path, nn.Linear(2, 3), wait_s=0)


def test_a_run_that_dilocoxd_trains_is_none_for_a_loop(tmp_path: Path) -> None:
    manifest = manifest_from_tables(preset_tables("tiny"), source="test")
    run_dir = create_run_dir(tmp_path / "run", manifest, SiteConfig())
    with pytest.raises(ConfigError, match="dilocoxd itself trains this run"):
        Site(run_dir.path, nn.Linear(2, 3))


def test_importing_the_package_loads_no_torch() -> None:
    script = "import dilocoxd, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "hivemind", "pydantic"} & set(json.loads(done.stdout))
