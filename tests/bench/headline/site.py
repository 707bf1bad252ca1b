"""A daemon whose trainers have steps of a fixed length: `python -m tests.bench.headline.site RUN_DIR`."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from dilocoxd.api.server import serve_api
from dilocoxd.daemon.app import run_daemon
from dilocoxd.daemon.site.interface import SiteEvent, SiteSettings
from dilocoxd.daemon.site.site import LocalSite

TRAINER = "tests.bench.headline.trainer"


def make_site(settings: SiteSettings, emit: Callable[[SiteEvent], None]) -> LocalSite:
    """The real site with paced trainers."""
    modules = (TRAINER, *settings.trainer_modules[1:])
    return LocalSite(dataclasses.replace(settings, trainer_modules=modules), emit)


if __name__ == "__main__":
    sys.exit(run_daemon(Path(sys.argv[1]), serve_api, make_site))
