"""Own models: found by entry point and hash without being run, proved on a tiny model, refused in one sentence."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from pydantic import ValidationError

from dilocoxd.cli.commands import check
from dilocoxd.cli.main import cli
from dilocoxd.config.manifest import load_manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.training import ModelSection
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageSpan, build_stage, param_specs
from dilocoxd.models.build import check_model
from dilocoxd.store.installed_models import installed_model, required_model, source_file
from tests.remedies.refused.elsewhere import refused
from tests.tutorials.documents import write_files

SIZES = {"vocab_size": 96, "hidden_size": 16, "num_layers": 3, "num_heads": 2, "num_kv_heads": 2}
REST = {"intermediate_size": 24, "seq_len": 8}
MARK = "ran.txt"


class Installed:
    """A folder on sys.path with a package and the .dist-info that names its entry point, as pip leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_files("own-model.md", folder)
        self.source = (folder / "prefix" / "prefix_model.py").read_text(encoding="utf-8")

    def put(self, module: str, changes: tuple[str, str] = ("", "")) -> str:
        """Install the tutorial's model as `module`, with a part of it replaced; its hash."""
        before, after = changes
        assert before in self.source
        text = self.source.replace(before, after, 1) if before else self.source
        text = f"from pathlib import Path\nPath({str(self.folder / MARK)!r}).touch()\n{text}"
        (self.folder / f"{module}.py").write_text(text, encoding="utf-8")
        info = self.folder / f"{module}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[dilocoxd.models]\n{module} = {module}:PrefixStage\n")
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def has_run(self) -> bool:
        return (self.folder / MARK).exists()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    before = set(sys.modules)
    made = Installed(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    yield made
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(made.folder)):
            del sys.modules[name]


def config(name: str, sha256: str) -> ModelConfig:
    return ModelConfig(kind="python", entry_point=name, entry_sha256=sha256, **SIZES, **REST)


def test_it_is_found_and_hashed_without_running(installed: Installed) -> None:
    digest = installed.put("own_a")
    found = installed_model("own_a")
    assert (found.sha256, found.module, found.attribute) == (digest, "own_a", "PrefixStage")
    assert not installed.has_run


def test_another_file_never_runs(installed: Installed) -> None:
    installed.put("own_b")
    with pytest.raises(ConfigError, match=r"own_b\.py .* has sha256 .* that of the run has 0000"):
        check_model(config("own_b", "0" * 64))
    assert not installed.has_run


def test_its_stages_are_the_whole_model(installed: Installed) -> None:
    model = config("own_c", installed.put("own_c"))
    check_model(model)
    whole = build_stage(model, StageSpan(0, 1, 0, 3), device=torch.device("cpu"))
    names = [name for name, _ in whole.global_parameters()]
    spans = [StageSpan(0, 2, 0, 1), StageSpan(1, 2, 1, 3)]
    stages = [build_stage(model, span, device=torch.device("cpu")) for span in spans]
    assert [name for stage in stages for name, _ in stage.global_parameters()] == names
    assert [spec.name for spec in param_specs(model)] == names
    assert "layers.2.mix.weight" in names


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("own_d", ("str(index)", "str(index - span.first_layer)"), "parameters are not those of the whole model"),
        ("own_e", ("x = self.embed(x)", "x = self.embed(x) + self.span.num_stages"), "cannot be cut"),
        ("own_f", ("normed.cumsum(1) / count", "normed.flip(1).cumsum(1) / count"), "sees later tokens"),
        ("own_g", ("self.head(self.norm(x))", "self.norm(x)"), "not logits"),
        ("own_h", ("self.span = span", "raise OSError('no')"), r"cannot be built .*OSError\('no'\)"),
        ("own_i", ("x = self.embed(x)", "x = self.embed(x) @ x"), "cannot compute"),
        ("own_j", ("PrefixStage(StageModule)", "PrefixStage(nn.Module)"), "is no dilocoxd.models.StageModule"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_one_sentence(
    installed: Installed, name: str, changes: tuple[str, str], words: str
) -> None:
    model = config(name, installed.put(name, changes))
    with pytest.raises(ConfigError, match=words) as raised:
        check_model(model)
    assert "\n" not in str(raised.value)


def test_a_model_that_nobody_brings(installed: Installed) -> None:
    installed.put("own_k")
    with pytest.raises(ConfigError, match=r"no installed package brings the model 'other' \(.*own_k"):
        installed_model("other")
    (installed.folder / "own_k.py").unlink()
    with pytest.raises(ConfigError, match="there is no such file"):
        installed_model("own_k")


def test_the_file_of_a_module_in_a_package_is_found_without_importing_it(installed: Installed) -> None:
    package = installed.folder / "own_pack" / "inner"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.write_text("raise AssertionError('imported')\n")
    (package / "model.py").write_text("")
    assert source_file("own_pack.inner.model") == package / "model.py"
    assert source_file("own_pack.nothing.model") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "python"},
        {"kind": "python", "entry_point": "x"},
        {"kind": "native", "entry_point": "x", "entry_sha256": "0" * 64},
        {"kind": "python", "entry_point": "x", "entry_sha256": "0" * 64, "extra": {"mlp_bias": True}},
        {"kind": "python", "entry_point": "../x", "entry_sha256": "0" * 64},
    ],
)
def test_a_manifest_names_it_wholly_or_not_at_all(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ModelSection.model_validate({**SIZES, **REST, **fields})


def test_start_names_it_and_run_refuses_another_file(installed: Installed, tmp_path: Path) -> None:
    digest = installed.put("own_l")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {i} is the sum of {i} and nothing.\n" for i in range(2000)), encoding="utf-8")
    common = ["--dir", str(tmp_path / "run"), "--cache", str(tmp_path / "cache"), "--api-port", "0"]

    def invoke(*arguments: str) -> None:
        CliRunner().invoke(cli, list(arguments), standalone_mode=False, catch_exceptions=False)

    with refused("cli/model/origin.py", "leave out --init and --config"):
        invoke("start", "tiny", "--no-run", "--model", "own_l", "--init", str(tmp_path), *common)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(installed.folder), prepend=":")
        invoke(
            "start",
            "tiny",
            "--no-run",
            "--model",
            "own_l",
            "--set",
            "model.vocab_size=300",
            "--data",
            f"t={text}",
            *common,
        )
    model = load_manifest(tmp_path / "run" / "run.toml").model
    assert (model.kind, model.entry_point, model.entry_sha256) == ("python", "own_l", digest)
    assert model == replace_model(model)
    installed.put("own_l", ("the mean of what", "the means of what"))
    with pytest.raises(ConfigError, match="install the version of the package that the run was started with"):
        required_model(model.entry_point, model.entry_sha256)
    with pytest.raises(ConfigError, match="install the version of the package"):
        invoke("run", str(tmp_path / "run"), "--api-port", "0")


def replace_model(model: ModelSection) -> ModelSection:
    """What comes out of the trainers' view of it: nothing is lost on the way."""
    whole = replace(ModelConfig.from_section(model), adapter=None)
    return ModelSection.model_validate({name: getattr(whole, name) for name in ModelSection.model_fields})


@pytest.mark.parametrize(
    ("name", "changes", "is_refused"),
    [
        ("own_m", ("", ""), True),
        (
            "own_n",
            ("    def global_parameters", "    def blocks(self):\n        ...\n\n    def global_parameters"),
            False,
        ),
        ("own_o", ("PrefixStage(StageModule)", "PrefixStage(Another)"), False),
    ],
)
def test_a_model_that_cannot_be_cut_finer_is_refused_before_anything_starts(
    installed: Installed, name: str, changes: tuple[str, str], is_refused: bool
) -> None:
    model = {"kind": "python", "entry_point": name, "entry_sha256": installed.put(name, changes), **SIZES, **REST}
    manifest = manifest_from_tables(preset_tables("tiny") | {"model": model}, source="test")
    told = refused("cli/commands.py", "has no blocks(); leave parallel.")
    with told if is_refused else nullcontext():
        check(manifest, SiteConfig.model_validate({"parallel": {"shard": 2}}), installed.folder, is_started=False)
    check(manifest, SiteConfig(), installed.folder, is_started=False)
    assert not installed.has_run
