"""What people type wrong: one sentence with what to do, exit code 78, and nothing written or changed by it.

docs/lab/inputs.md lists all that was once tried by hand, with the tests that hold the answers.
"""

import os
import shutil
from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner, Result

from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run, somebody's own folder and file, and files that are no configuration."""
    monkeypatch.chdir(tmp_path)
    invoke("init", "tiny", "--dir", "run", "--host", "127.0.0.1", "--port", "0")
    invoke("init", "tiny", "--dir", "half", "--host", "127.0.0.1", "--port", "0")
    Path("half/site.toml").unlink()
    shutil.copytree("run", "changed")
    told = Path("changed/run.toml").read_text()
    Path("changed/run.toml").write_text(told.replace("seq_len = 32", "seq_len = 64"))
    Path("mine").mkdir()
    Path("mine/keep.txt").write_text("my own words")
    Path("file").write_text("no folder")
    Path("broken.toml").write_text("a = [")
    Path("short.txt").write_text("hi")
    return tmp_path


def found_in(folder: Path) -> dict[str, bytes]:
    """All files, but for caches."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


OTHERS_FILES = r"^mine: is no run directory, and has other files in it \(keep\.txt\); give --dir a new or empty folder$"


@pytest.mark.parametrize(("typed", "said"), [
    ("run nowhere", r"nowhere: is no run directory .*, or make one with `dilocoxd init` or `dilocoxd join`$"),
    ("doctor nowhere", r"nowhere: is no run directory .*; give the path of one, or make one with "),
    ("doctor mine", r"mine: is no run directory .*; give the path of one, or make one with "),
    ("start tiny --dir new --set round.progress_timeout_s=5s", r"_s = '5s' is wrong: give a number without a unit "),
    ("plan  --link 100M --sites 2", r"there is no preset and no file ''; use one of "),
    ("plan tiny --link 0 --sites 2", r"--link '0' says 0 bit/s; give 1k to 10000G, with its unit"),
    ("export run --out model", r"run: this run was never started here, .*; begin with `dilocoxd run .*run`$"),
    ("run mine", r"mine: is no run directory .*; give the path of one, or make one with `dilocoxd init`"),
    ("run file", r"file: is no run directory .*; give the path of one, or make one with `dilocoxd init`"),
    ("run half", r"half/site\.toml: cannot be read .*; restore it, or begin from .* with `touch .*/site\.toml`$"),
    ("run changed", r"run\.toml was changed, .* undo the change, or make a new run with `dilocoxd start run\.toml`$"),
    ("start tinny", r"no preset and no file 'tinny'; use one of demo, small, tiny or the path of a run\.toml$"),
    ("start tiny:spase", r"no strategy 'spase'; use one of .*sparseloco"),
    ("start broken.toml", r"broken\.toml: not valid TOML .*; correct that line$"),
    ("start tiny --dir mine", OTHERS_FILES),
    ("join 127.0.0.1:9 --dir mine", OTHERS_FILES),
    ("join 127.0.0.1:9 --dir file", r"file: cannot be used .*; give --dir a writable place$"),
    ("init tiny --dir run", r"run: holds a run already; use `dilocoxd run run`, or give --dir another directory$"),
    (f"join {PEER}", r"is a peer id, which says who but not where; write it as "),
    ("join http://10.0.0.1", r"cannot be understood; write it as "),
    ("join 10.0.0.1:99999", r"has port 99999, not 1 to 65535; write it as "),
    ("start tiny --data= --dir new", r"there is no .*; give the path of a text file or folder$"),
    ("start tiny --data a=file --data a=short.txt --dir new", r"a is .*file already; give each a name of its own$"),
    ("start tiny --data gone.txt --dir new", r"there is no .*gone\.txt; give the path of a text file or folder$"),
    ("start tiny --port 0 --api-port 0 --data short.txt --dir new", r"vocab_size = 512 asks for more: lower it or use"),
    ("init tiny --dir new --set storage.payload_bytes_max=10MB", r"'10MB' is wrong: give a whole number without a uni"),
    ("init tiny --dir new --set model.num_heads=3", r"hidden_size = 32 is not a multiple of model\.num_heads = 3; c"),
    ("init tiny --dir new --set parallel.device=cuda --set parallel.backend=gloo", r"use gloo with cpu, nccl w"),
    ("init --from run@last --dir new", r"--from run@last: 'last' is no round; write run@ROUND with a whole "),
    ("init --from run@-1 --dir new", r"--from run@-1: '-1' is no round; write run@ROUND with a whole number"),
    ("init --from run@ --dir new", r"--from run@: '' is no round; write run@ROUND with a whole number"),
    ("init tiny --dir new --set foo.bar=1", r"unknown section foo; remove it, known here: run, model"),
])  # fmt: skip
def test_wrong_input_is_one_sentence_and_changes_nothing(typed: str, said: str, here: Path) -> None:
    before = found_in(here)
    with pytest.raises(ConfigError, match=said) as refused:
        invoke(
            *typed.split(" "), *(["--cache", str(here.parent / "cache")] if typed.startswith("start tiny --") else [])
        )
    assert refused.value.exit_code == 78
    assert "\n" not in str(refused.value)
    assert found_in(here) == before


def test_check_config_knows_a_run_toml_that_was_changed_before_the_first_round(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said `ok` and the id of another run, and `run` printed a link to that before the daemon refused it."""
    assert cli.main(["check-config", "changed"], standalone_mode=False) == 78
    assert "run.toml was changed" in capsys.readouterr().err
    assert cli.main(["check-config", "run"], standalone_mode=False) == 0


def test_site_toml_that_is_made_as_told_is_a_whole_one(here: Path) -> None:
    Path("half/site.toml").touch()
    assert open_run_dir(here / "half").load()[1].network.port == 31337


def test_cache_that_cannot_be_written_is_named_with_what_to_do(here: Path) -> None:
    (here / "cache").write_text("no folder")
    ports = ("--host", "127.0.0.1", "--port", "0", "--api-port", "0")
    with pytest.raises(ConfigError, match=r"cannot keep training data in .*; free space there, or give .* --cache$"):
        invoke("start", "tiny", "--dir", "new", "--cache", str(here / "cache"), *ports)
    assert not Path("new").exists()


def test_two_daemons_in_one_run_directory_are_refused_by_name(here: Path) -> None:
    with open_run_dir(here / "run").locked(), pytest.raises(ConfigError, match=rf"\b{os.getpid()}\b"):
        invoke("run", "run")


def test_names_that_people_give_folders_are_good(here: Path) -> None:
    for name in ("two words", "gr\xf6\xdfe", "x" * 120):
        assert invoke("init", "tiny", "--dir", f"{name}/run", "--host", "127.0.0.1", "--port", "0").return_value == 0
        assert invoke("check-config", f"{name}/run").return_value == 0


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf"])
def test_time_that_is_none_is_wrong_usage(seconds: str, here: Path) -> None:
    """It was `dilocoxd: ; check how it is written, or give the site's IP address in its place`."""
    with pytest.raises(UsageError, match="is no time to wait"):
        invoke("join", "127.0.0.1:9", "--timeout", seconds)


def test_commands_in_messages_can_be_copied_where_a_folder_has_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`start it with `dilocoxd run two words``, pasted, was wrong usage; only the last line of a stop had quotes."""
    monkeypatch.chdir(tmp_path)
    invoke("init", "tiny", "--dir", "two words", "--host", "127.0.0.1", "--port", "0", "--api-port", "0")
    for typed, told in (
        (["init", "tiny", "--dir", "two words"], "use `dilocoxd run 'two words'`"),
        (["config", "set", "two words", "outer.lr=1"], "dilocoxd start --from 'two words' --set outer.lr="),
        (["logs", "two words"], f"begin with `dilocoxd run '{tmp_path}/two words'`"),
        (["export", "two words", "--out", "model"], f"begin with `dilocoxd run '{tmp_path}/two words'`"),
        (["status", "two words"], "`dilocoxd config set 'two words' api.port=8080`"),
    ):
        with pytest.raises(ConfigError) as refused:
            invoke(*typed)
        assert told in str(refused.value)
    assert "go on with: dilocoxd run 'two words'" in invoke("identity", "new", "two words").output
