"""`dilocoxd files`: what comes with the package can be listed, printed and written, with this installation's path."""

import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError

NAMES = [
    "alerts.yml", "grafana-dashboard.json", "dilocoxd-admin", "dilocoxd-node.service", "dilocoxd.service",
    "dilocoxd.sysusers", "dilocoxd.tmpfiles", "dilocoxd@.service", "gpu.conf",
]  # fmt: skip


def files(*arguments: str) -> str:
    return CliRunner().invoke(cli, ["files", *arguments], standalone_mode=False, catch_exceptions=False).output


def test_all_are_listed_and_written_with_the_path_of_this_installation(tmp_path: Path) -> None:
    assert files().split() == NAMES
    files("--out", str(tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(NAMES)
    unit = (tmp_path / "out" / "dilocoxd.service").read_text()
    assert f"ExecStart={Path(sys.executable).parent}/dilocoxd run" in unit and "/opt/" not in unit
    assert stat.S_IMODE((tmp_path / "out" / "dilocoxd-admin").stat().st_mode) == 0o755
    assert files("dilocoxd.service") == unit
    with pytest.raises(ConfigError, match=r"no file gpu comes with dilocoxd; choose one of alerts\.yml, "):
        files("gpu")
