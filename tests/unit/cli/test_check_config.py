"""The command itself, as a process where that costs little: exit codes, one sentence per problem, no traceback."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli import check
from dilocoxd.cli.declared.checking import check_config
from dilocoxd.cli.main import main
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.machine_memory import MachineMemory
from dilocoxd.store.rundir import create_run_dir


def dilocoxd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dilocoxd", *arguments], capture_output=True, text=True, check=False)


def checked_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`dilocoxd check-config` in this process, which has torch: to load it takes most of the command's two seconds."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["dilocoxd", "check-config", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    assert isinstance(ended.value.code, int | None)
    return subprocess.CompletedProcess(arguments, ended.value.code or 0, out.getvalue(), err.getvalue())


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


@pytest.mark.parametrize(
    ("changes", "every", "sentence"),
    [
        ({}, 8, ""),
        ({}, 0, "workers.without_one_every = 0"),
        ({"data": {"evaluate_every_rounds": 0}}, 8, "this run evaluates nothing"),
        ({"model": {"kind": "external"}}, 8, "until your own loop tells losses of several batches"),
    ],
)
def test_an_operator_is_told_where_no_contribution_is_measured(
    changes: dict[str, dict[str, object]], every: int, sentence: str
) -> None:
    tables = preset_tables("tiny")
    manifest = manifest_from_tables({**tables, "data": tables["data"] | changes.get("data", {})}, source="tiny")
    if "model" in changes:
        manifest = manifest.model_copy(update={"model": manifest.model.model_copy(update=changes["model"])})
    site = validated(SiteConfig, {"workers": {"without_one_every": every}}, source="test")
    found = check.gaps(manifest, site)
    assert [sentence in text for text in found] == [True] * bool(sentence)
    assert all(text.startswith("no site whose contributions do harm") for text in found)


def test_check_config_warns_of_it(tmp_path: Path) -> None:
    path = run_toml(tmp_path)
    path.write_text(path.read_text().replace("evaluate_every_rounds = 1\n", "evaluate_every_rounds = 0\n"))
    done = checked_here(str(path))
    assert (done.returncode, done.stderr.count("alert harmful_contribution")) == (0, 1), done.stderr


def test_good_file_exits_0_and_names_the_run(tmp_path: Path) -> None:
    done = checked_here(str(run_toml(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok  run tiny-")


def test_wrong_value_exits_78_with_one_sentence(tmp_path: Path) -> None:
    path = run_toml(tmp_path, lr='"fast"')
    done = dilocoxd("check-config", str(path))
    assert done.returncode == 78
    assert done.stderr == f"error: {path}: outer.lr = 'fast' is wrong: give a number\n"


def test_every_wrong_value_is_shown(tmp_path: Path) -> None:
    path = run_toml(tmp_path, lr='"fast"', momentum=2)
    (tmp_path / "site.toml").write_text("[network]\nport = 99999\nhots = 1\n")
    done = CliRunner().invoke(check_config, [str(tmp_path)], standalone_mode=False)
    assert done.return_value == 78
    fields = [line.partition(" = ")[0] for line in done.output.splitlines()]
    assert fields == [
        f"error: {path}: outer.lr",
        f"error: {path}: outer.momentum",
        f"error: {tmp_path / 'site.toml'}: unknown field network.hots; did you mean network.host?",
        f"error: {tmp_path / 'site.toml'}: network.port",
    ]
    listed = CliRunner().invoke(check_config, ["--json", str(tmp_path)], standalone_mode=False)
    assert [f"error: {text}" for text in json.loads(listed.output)["problems"]] == done.output.splitlines()


def test_start_shows_every_wrong_set(tmp_path: Path) -> None:
    out = str(tmp_path / "new")
    done = dilocoxd("start", "tiny", "--dir", out, "--set", "outer.lr=fast", "--set", "outer.momentum=2")
    assert done.returncode == 78
    fields = [line.partition(" = ")[0].rpartition(" ")[2] for line in done.stderr.splitlines()]
    assert fields == ["outer.lr", "outer.momentum"]
    assert not Path(out).exists()


def test_run_directory_is_checked_whole_and_answers_in_json(tmp_path: Path) -> None:
    manifest = manifest_from_tables(preset_tables("tiny"), source="tiny")
    run_dir = create_run_dir(tmp_path / "run", manifest, SiteConfig())
    run_dir.site_toml.write_text("[network]\nport = 99999\n")
    done = checked_here("--json", str(run_dir.path))
    assert done.returncode == 78
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert found["run_id"] == manifest.run_id
    assert "network.port = 99999 is wrong: give a value of at most 65535" in found["problems"][0]


def test_warning_does_not_fail(tmp_path: Path) -> None:
    done = checked_here(str(run_toml(tmp_path, lr=3.5)))
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


def test_what_would_fail_in_the_first_round_is_refused_with_numbers(tmp_path: Path) -> None:
    tables = preset_tables("small")
    tables["strategy"] |= {"transform": "lowrank", "lowrank_r": 256, "segment_elements_max": 65536}
    path = tmp_path / "run.toml"
    path.write_text(manifest_from_tables(tables, source="small").to_toml())
    done = checked_here(str(path))
    assert done.returncode == 78
    assert "strategy.lowrank_r = 256 factors only" in done.stderr
    assert done.stderr.count("\n") == 1


def test_more_stages_than_layers_are_refused_with_the_run_directory(tmp_path: Path) -> None:
    manifest = manifest_from_tables(preset_tables("tiny"), source="tiny")
    site = SiteConfig.model_validate({"parallel": {"stages": 3}})
    run_dir = create_run_dir(tmp_path / "run", manifest, site)
    done = checked_here(str(run_dir.path))
    assert done.returncode == 78
    assert "3 pipeline stages do not fit a model of 2 layers" in done.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[network]\nupload_bytes_per_s_max = 1\n", "1 bytes/s is too slow"),
        ("[network]\nserve_bytes_per_s_max = 10\n", "10 bytes/s is too slow"),
        ("[workers]\nstep_timeout_s = 0.001\n", "workers.step_timeout_s = 0.001 is wrong: give a value of at least 1"),
        ('[paths]\nidentity = "/etc/passwd"\n', "paths.identity = '/etc/passwd' lies among the files of the system"),
        ('[paths.corpora]\nmine = "/dev/zero"\n', "the text mine = '/dev/zero' lies among the files of the system"),
        ("[storage]\npayload_rounds_max = 1000000000\n", "keeps payloads until the disk is full"),
        ('[api]\nhost = "0.0.0.0"\n', "everybody who reaches port"),
    ],
)
def test_value_that_nobody_means_is_told(tmp_path: Path, text: str, why: str) -> None:
    """L1 of the review: all of these passed without a word."""
    path = tmp_path / "site.toml"
    path.write_text(text)
    result = CliRunner().invoke(check_config, [str(path)], standalone_mode=False)
    assert why in result.output, result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("section", "field", "value", "why"),
    [
        ("round", "peers_max", 1024, "round.peers_max = 1024 makes room for that many payloads"),
        ("round", "tokens_max", 2**48 - 1, "lets a liar weigh"),
        ("round", "peers_max", 2, "GiB of a site, and this machine has"),
        ("snapshot", "keep", 1000, "keeps that many whole models"),
        ("data", "validation_sequences", 100_000, "makes every evaluation long"),
    ],
)
def test_manifest_that_costs_too_much_is_told(tmp_path: Path, section: str, field: str, value: int, why: str) -> None:
    tables = preset_tables("tiny")
    tables.setdefault(section, {})[field] = value
    path = tmp_path / "run.toml"
    path.write_text(manifest_from_tables(tables, source="tiny").to_toml())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "impossible", lambda manifest, site: [])
        patch.setattr(check, "machine_memory", lambda: MachineMemory(1 << 20, 1 << 20))
        result = CliRunner().invoke(check_config, [str(path)], standalone_mode=False)
    assert why in result.output, result.output


def test_model_of_a_stranger_sets_only_what_somebody_looked_at(tmp_path: Path) -> None:
    tables = preset_tables("tiny")
    tables["model"] |= {"kind": "llama", "extra": {"num_labels": 1_000_000_000}}
    with pytest.raises(ConfigError, match=r"model\.extra has num_labels, which no run may set"):
        manifest_from_tables(tables, source="theirs")
    tables["model"]["extra"] = {"attention_bias": True}
    manifest_from_tables(tables, source="theirs")
