"""A whole daemon with a real outer worker and p2pd, but trainers without a model: `... RUN_DIR`."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from dilocoxd.api.server import serve_api
from dilocoxd.daemon.app import run_daemon
from dilocoxd.daemon.site.interface import SiteEvent, SiteSettings
from dilocoxd.daemon.site.site import LocalSite

TRAINER = "tests.harness.synthetic.trainer"


def make_site(settings: SiteSettings, emit: Callable[[SiteEvent], None]) -> LocalSite:
    """The real site with other trainers."""
    return LocalSite(dataclasses.replace(settings, trainer_modules=(TRAINER,)), emit)


if __name__ == "__main__":
    sys.exit(run_daemon(Path(sys.argv[1]), serve_api, make_site))
