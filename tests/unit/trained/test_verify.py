"""`dilocoxd verify`: an export is what the log gives, or it is said what is not."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError
from tests.harness.outer_worker.run_on_disk import RunOnDisk, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    return make_run(tmp_path_factory.mktemp("verify"), rounds=3, snapshots_at=(0, 2))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def out(run: RunOnDisk, tmp_path: Path) -> Path:
    invoke("export", str(run.run_dir.path), "--round", "3", "--shard-gb", "0.00002", "--out", str(tmp_path / "out"))
    return tmp_path / "out"


def check(out: Path, run: RunOnDisk) -> Result:
    return invoke("verify", str(out), str(run.run_dir.path))


def test_an_export_agrees_however_it_is_cut_into_files(run: RunOnDisk, out: Path) -> None:
    assert len(list(out.glob("*.safetensors"))) > 1
    done = check(out, run)
    assert done.return_value == 0
    assert f"is round 3 of {run.manifest.run_id}" in done.output
    assert [path.name for path in out.parent.iterdir()] == ["out"], "nothing is left behind"


@pytest.mark.parametrize("options", [("--average", "2"), ("--dtype", "bfloat16")])
def test_means_and_half_formats_agree(run: RunOnDisk, tmp_path: Path, options: tuple[str, ...]) -> None:
    invoke("export", str(run.run_dir.path), "--round", "3", "--out", str(tmp_path / "out"), *options)
    assert check(tmp_path / "out", run).return_value == 0


def spoil_weight(out: Path) -> str:
    path = sorted(out.glob("*.safetensors"))[1]
    weights = load_file(path)
    name = sorted(weights)[0]
    weights[name].view(-1)[0] += 1e-3
    save_file(weights, path)
    return name


def spoil_order(out: Path) -> str:
    index = out / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    names = sorted(table["weight_map"])
    table["weight_map"][names[0]], table["weight_map"][names[-1]] = "x.safetensors", "y.safetensors"
    index.write_text(json.dumps(table))
    return index.name


def spoil_config(out: Path) -> str:
    path = out / "config.json"
    path.write_text(path.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 10001.0', 1))
    return path.name


def spoil_by_code(out: Path) -> str:
    (out / "modeling_own.py").write_text("")
    return "modeling_own.py"


def spoil_by_template(out: Path) -> str:
    """transformers takes it in the place of the tokenizer's own."""
    (out / "chat_template.jinja").write_text("{{ 'obey ' + messages[0]['content'] }}")
    return "chat_template.jinja"


def spoil_by_adapter(out: Path) -> str:
    """transformers loads the model that it names, not the one beside it."""
    (out / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "somebody/else"}))
    return "adapter_config.json"


def spoil_by_templates(out: Path) -> str:
    """transformers reads all that lie in there."""
    (out / "additional_chat_templates").mkdir()
    return "additional_chat_templates"


def spoil_tensor(out: Path) -> str:
    path = sorted(out.glob("*.safetensors"))[0]
    weights = load_file(path)
    name = sorted(weights)[0]
    weights.pop(name)
    save_file(weights, path)
    return name


@pytest.mark.parametrize("spoil", [
    spoil_weight, spoil_order, spoil_config, spoil_by_code, spoil_by_template, spoil_by_adapter, spoil_by_templates,
    spoil_tensor,
])  # fmt: skip
def test_what_differs_is_named(run: RunOnDisk, out: Path, spoil: object) -> None:
    name = spoil(out)  # type: ignore[operator]
    done = check(out, run)
    assert done.return_value == 1
    assert name in done.output
    assert "is not round 3" in done.output


def test_of_another_run_or_no_export(run: RunOnDisk, out: Path, tmp_path: Path) -> None:
    card = out / "README.md"
    text = card.read_text()
    card.write_text(text.replace(run.manifest.run_id, "other-0123456789abcdef"))
    with pytest.raises(ConfigError, match="is of run other-0123456789abcdef"):
        check(out, run)
    card.write_text("# hello")
    with pytest.raises(ConfigError, match="does not say which run"):
        check(out, run)
    with pytest.raises(ConfigError, match="cannot be read"):
        check(tmp_path, run)


def test_what_git_and_people_leave_beside_an_export_is_no_part_of_it(run: RunOnDisk, out: Path) -> None:
    (out / ".gitattributes").write_text("*.safetensors filter=lfs")
    (out / ".cache").mkdir()
    assert check(out, run).return_value == 0


@pytest.mark.parametrize("name", ["README.md", "other.safetensors"])
def test_a_pipe_in_an_export_is_not_waited_for(run: RunOnDisk, out: Path, name: str) -> None:
    (out / name).unlink(missing_ok=True)
    os.mkfifo(out / name)
    with pytest.raises(ConfigError, match="no file"):
        check(out, run)


def test_an_export_that_lies_read_only_is_checked_elsewhere(
    run: RunOnDisk, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so only the answer to whether we may is another one."""
    folders, folder, access = list[object](), tempfile.TemporaryDirectory, os.access

    def noted(prefix: str, dir: Path | None = None) -> object:  # noqa: A002 (tempfile's own name)
        folders.extend([dir] if "check" in prefix else [])
        return folder(prefix=prefix, dir=dir)

    monkeypatch.setattr(os, "access", lambda path, mode: path != out.parent and access(path, mode))
    monkeypatch.setattr(tempfile, "TemporaryDirectory", noted)
    assert check(out, run).return_value == 0
    assert folders == [None], "the place of temporary files"
