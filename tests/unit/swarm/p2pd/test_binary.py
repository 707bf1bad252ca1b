"""p2pd is checked by its hash before it is started."""

from pathlib import Path

import hivemind
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.swarm.p2pd.binary import TESTED, check_binary

INSTALLED = Path(hivemind.__path__[0]) / "hivemind_cli" / "p2pd"


def test_installed_program_is_the_tested_one() -> None:
    check_binary(INSTALLED)


def test_another_program_is_not_started(tmp_path: Path) -> None:
    path = tmp_path / "p2pd"
    path.write_bytes(b"#!/bin/sh\n")
    for machine in TESTED:
        with pytest.raises(ConfigError, match=r"has the sha256 .* was tested; install"):
            check_binary(path, machine)
    check_binary(path, "a machine that nobody tested")
    with pytest.raises(ConfigError, match="cannot be read"):
        check_binary(tmp_path / "none", "x86_64")
