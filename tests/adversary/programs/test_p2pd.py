"""A p2pd that somebody has replaced: it speaks to strangers for a site, and comes inside another package (M8)."""

import platform
from pathlib import Path

import hivemind.hivemind_cli
import pytest

from dilocoxd.cli.exit_codes import CONFIG
from dilocoxd.swarm.p2pd.binary import TESTED
from tests.adversary.daemon import patched
from tests.adversary.patches.other_p2pd import VARIABLE
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import sites, wait_until

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0
REAL = Path(hivemind.hivemind_cli.__file__).with_name("p2pd")


def replaced(folder: Path) -> Path:
    """A folder with a p2pd that leaves a trace, and then does what the real one does."""
    folder.mkdir()
    (folder / "__init__.py").touch()
    program = folder / "p2pd"
    program.write_text(f'#!/bin/sh\n: > "{folder}/ran"\nexec "{REAL}" "$@"\n')
    program.chmod(0o755)
    return folder


def test_another_p2pd_is_not_run(tmp_path: Path) -> None:
    site, hollow = (found_run(tmp_path, name) for name in ("a", "h"))
    folders = {one.name: replaced(tmp_path / f"cli-{one.name}") for one in (site, hollow)}
    with sites(site, hollow):
        for one, holes in ((site, ()), (hollow, ("hole_p2pd",))):
            one.environment[VARIABLE] = str(folders[one.name])
            patched(one, "other_p2pd", *holes)
        assert site.process is not None
        code = site.process.wait(PATIENCE_S)
        wait_until((folders["h"] / "ran").exists, "the other program to run", PATIENCE_S, hollow.describe)
        hollow.wait_height(1, PATIENCE_S)
    said = site.log_path.read_text()
    assert platform.machine() in TESTED, "the tests run on a machine whose p2pd nobody knows"
    assert code == CONFIG, said
    assert "install the hivemind that constraints.txt names again" in said
    assert not (folders["a"] / "ran").exists()
