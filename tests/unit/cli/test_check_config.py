"""The command itself, as a process: exit codes, one sentence per problem, no traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.store.rundir import create_run_dir


def dilocoxd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dilocoxd", *arguments], capture_output=True, text=True, check=False)


def run_toml(folder: Path, **outer: object) -> Path:
    tables = preset_tables("tiny")
    tables["outer"].update(outer)
    path = folder / "run.toml"
    path.write_text(manifest_from_tables(preset_tables("tiny"), source="tiny").to_toml())
    text = path.read_text()
    for name, value in outer.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{name} = "))
        assert text.count(old) >= 1
        head, section, rest = text.partition("[outer]")
        text = head + section + rest.replace(f"{name} = {tables_value(name)}", f"{name} = {value}", 1)
    path.write_text(text)
    return path


def tables_value(name: str) -> object:
    return preset_tables("tiny")["outer"][name]


def test_good_file_exits_0_and_names_the_run(tmp_path: Path) -> None:
    done = dilocoxd("check-config", str(run_toml(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok  run tiny-")


def test_wrong_value_exits_78_with_one_sentence(tmp_path: Path) -> None:
    path = run_toml(tmp_path, lr='"fast"')
    done = dilocoxd("check-config", str(path))
    assert done.returncode == 78
    assert done.stderr == f"error: {path}: outer.lr = 'fast' is wrong: give a number without quotes\n"


def test_run_directory_is_checked_whole_and_answers_in_json(tmp_path: Path) -> None:
    manifest = manifest_from_tables(preset_tables("tiny"), source="tiny")
    run_dir = create_run_dir(tmp_path / "run", manifest, SiteConfig())
    run_dir.site_toml.write_text("[network]\nport = 99999\n")
    done = dilocoxd("check-config", "--json", str(run_dir.path))
    assert done.returncode == 78
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert found["run_id"] == manifest.run_id
    assert "network.port = 99999 is wrong: give a value of at most 65535" in found["problems"][0]


def test_warning_does_not_fail(tmp_path: Path) -> None:
    done = dilocoxd("check-config", str(run_toml(tmp_path, lr=3.5)))
    assert done.returncode == 0
    assert "warning: " in done.stderr
    assert "diverges" in done.stderr


@pytest.mark.parametrize("arguments", [["check-config"], ["nothing"], ["run"], ["start", "--stages", "two"]])
def test_wrong_usage_exits_2_without_a_traceback(arguments: list[str]) -> None:
    done = dilocoxd(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage" in done.stderr


def test_run_of_a_directory_without_a_run_exits_78(tmp_path: Path) -> None:
    done = dilocoxd("run", str(tmp_path))
    assert done.returncode == 78
    assert "is no run directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_prints_every_field_with_its_cost() -> None:
    done = dilocoxd("check-config", "--explain")
    assert done.returncode == 0
    assert "inner_steps (required)\n    H: inner steps of one phase." in done.stdout
    assert "[network]" in done.stdout
    assert done.stdout.count(" Cost: ") > 80
