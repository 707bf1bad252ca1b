"""A daemon that lies or lacks a mend: `python -m tests.adversary.daemon PATCH[,PATCH] RUN_DIR`.

With FAKE_PHASE_S in the environment it has no workers (tests/harness/synthetic/fake_site.py), else real ones. A patch
changes the daemon's process only.
"""

import importlib
import os
import sys
from pathlib import Path

from dilocoxd.api.server import serve_api
from dilocoxd.daemon.app import run_daemon
from dilocoxd.daemon.site.site import LocalSite
from tests.harness.running.sites import SiteProcess
from tests.harness.synthetic.fake_site import FakeSite


def patched(site: SiteProcess, *patches: str, phase_s: float | None = 1.0) -> None:
    """Start `site` with these patches; `phase_s` None: with real workers."""
    if phase_s is not None:
        site.environment["FAKE_PHASE_S"] = str(phase_s)
    site.start_command([sys.executable, "-m", "tests.adversary.daemon", ",".join(patches), str(site.run_dir)])


def main(patches: str, run_dir: Path) -> int:
    """Exit code of the daemon."""
    for name in patches.split(","):
        folder = "holes" if "hole_" in name else "patches"
        importlib.import_module(f"tests.adversary.{folder}.{name}").apply()
    return run_daemon(run_dir, serve_api, FakeSite if "FAKE_PHASE_S" in os.environ else LocalSite)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
