"""As an installation whose p2pd somebody has replaced: hivemind's folder with it lies where HIVEMIND_CLI says."""

import importlib.util
import os
from pathlib import Path

from hivemind.p2p import p2p_daemon

from dilocoxd.swarm.p2pd import node

VARIABLE = "HIVEMIND_CLI"


def apply() -> None:
    """Both who checks the program and who starts it find it there."""
    found = importlib.util.spec_from_file_location("other_cli", Path(os.environ[VARIABLE]) / "__init__.py")
    assert found is not None
    assert found.loader is not None
    other = importlib.util.module_from_spec(found)
    found.loader.exec_module(other)
    p2p_daemon.cli = other
    node.hivemind_cli = other
