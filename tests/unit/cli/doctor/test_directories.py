"""What `dilocoxd doctor RUN_DIR` says of a directory that is none, or holds files that nobody accepts."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], standalone_mode=False, catch_exceptions=False)


def test_broken_file_is_a_finding_that_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[model]\nkind = 7\n")
    done = doctor("--json", str(tmp_path))
    first = json.loads(done.output)["findings"][0]
    assert done.return_value == 1
    assert first["check"] == "config" and "run.toml: " in first["text"] and first["remedy"]


def test_no_run_directory_is_refused_and_no_field_is_to_be_corrected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"is no run directory .*; give the path of one") as refused:
            doctor(str(path))
        assert refused.value.exit_code == 78 and "field" not in str(refused.value)
