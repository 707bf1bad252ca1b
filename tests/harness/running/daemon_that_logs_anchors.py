"""A daemon that writes down when its trainers took which anchor: `python -m
tests.harness.running.daemon_that_logs_anchors RUN_DIR`.

The log does not say it, and need not: merging is local. Whoever computes a run again whose trainers merge in the middle
of a phase (delays arrival and streaming) needs it.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dilocoxd.api.server import serve_api
from dilocoxd.daemon.app import run_daemon
from dilocoxd.daemon.site.interface import AnchorAdopted, SiteEvent, SiteSettings
from dilocoxd.daemon.site.site import LocalSite

NAME = "takes.jsonl"


@dataclass(frozen=True, slots=True)
class Take:
    """After `inner_step` steps of `phase` the trainers took anchor `round`; how: start, replace, merge or mix."""

    phase: int
    inner_step: int
    round: int
    how: str


Takes = dict[int, list[Take]]
"""By phase."""


def takes_of(run_dir: Path) -> Takes:
    """What a site's daemon wrote down."""
    found: Takes = {}
    for line in (run_dir / NAME).read_text().splitlines():
        take = Take(**json.loads(line))
        found.setdefault(take.phase, []).append(take)
    return found


def make_site(settings: SiteSettings, emit: Callable[[SiteEvent], None]) -> LocalSite:
    """The real site; what it tells is written down on the way."""
    path = settings.run_directory / NAME

    def noted(event: SiteEvent) -> None:
        if isinstance(event, AnchorAdopted):
            take = Take(event.phase, event.inner_step, event.round, event.how)
            with path.open("a") as file:
                file.write(json.dumps(asdict(take)) + "\n")
        emit(event)

    return LocalSite(settings, noted)


if __name__ == "__main__":
    sys.exit(run_daemon(Path(sys.argv[1]), serve_api, make_site))
