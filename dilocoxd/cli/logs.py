"""`dilocoxd logs`: the events of a site as lines for people, from its run directory; with -f as they come."""

import json
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

import click

from dilocoxd.answers.peers import Peer
from dilocoxd.answers.status import Status
from dilocoxd.answers.words import wrapped
from dilocoxd.cli.client import client_for
from dilocoxd.cli.screens.layout import width
from dilocoxd.errors import ConfigError, PeerError
from dilocoxd.site_names import in_words, labels_of, short_id
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.telemetry.catalogue import Level
from dilocoxd.telemetry.events import SEVERITY
from dilocoxd.telemetry.records import line_of, shown_level_of

POLL_S: Final = 0.5
ASK_AGAIN_S: Final = 5.0
"""For the names of sites, when one comes that has none."""


def logs(run_directory: Path, follow: bool, last: int, level: Level) -> int:
    """Exit code of `dilocoxd logs` (cli/declared/watching.py). Raises ConfigError."""
    run_dir = open_run_dir(run_directory)
    path, label = run_dir.events, Labels(str(run_directory))
    if not path.is_file():
        raise ConfigError(
            f"{path}: this run was never started here; begin with `dilocoxd run {shlex.quote(str(run_dir.path))}`"
        )
    older = path.with_name(path.name + ".1")
    lines = (line for file in (older, path) for line in lines_of(file))
    found = deque(shown(lines, level, label), maxlen=min(last, sys.maxsize))
    for line in found:
        show_line(line)
    if follow:
        if level == "info":
            click.echo("(what happens from now on; each round too: --level debug)", err=True)
        for line in shown(coming(path), level, label):
            show_line(line)
            sys.stdout.flush()
    return 0


def show_line(line: str) -> None:
    """On a terminal broken between words, behind date and time."""
    for part in wrapped(line, width(is_wide=False), len("2026-11-22 14:06:46 ")):
        click.echo(part)


class Labels:
    """What sites are called: as the running daemon says, or as the run directory remembers; else the short ids. A site
    that is new is asked for."""

    def __init__(self, target: str | None) -> None:
        self._target = target
        self._names = names_of(target)
        self._asked_at = time.monotonic()

    def __call__(self, peer: str) -> str:
        if peer not in self._names and time.monotonic() - self._asked_at >= ASK_AGAIN_S:
            self._names = names_of(self._target) or self._names
            self._asked_at = time.monotonic()
        return self._names.get(peer) or short_id(peer)


def names_of(target: str | None) -> dict[str, str]:
    """Of all sites that the daemon knows; while it does not run, of those that its run directory remembers."""
    try:
        client = client_for(target)
        me = client.ask("/v1/status", Status)
        return {me.peer_id: me.name, **{peer.peer_id: peer.name for peer in client.ask("/v1/peers", list[Peer])}}
    except (PeerError, ConfigError):
        return remembered_names(Path(target or "."))


def remembered_names(run_directory: Path) -> dict[str, str]:
    """What the sites that this one has met called themselves; none where that is no run directory."""
    # Here and not above: with a daemon nobody needs them, and they take a while to load.
    from dilocoxd.swarm.discovery import identity
    from dilocoxd.swarm.discovery.peers_file import PeersFile

    try:
        run_dir = open_run_dir(run_directory)
        manifest, site = run_dir.load()
        me = identity.load(run_dir.identity(site)).peer_id
    except ConfigError:
        return {}
    names = {str(peer): name for peer, name in PeersFile(run_dir.peers_json).names(manifest.run_id).items()}
    return labels_of({**names, me: site.site.shown})


def shown(lines: Iterator[str], level: Level, label: Callable[[str], str]) -> Iterator[str]:
    """Lines for people of JSON lines of this severity and above; what is no event is left out."""
    for text in lines:
        try:
            record = json.loads(text)
            if SEVERITY[shown_level_of(record)] >= SEVERITY[level]:
                yield in_words(line_of(record), label)
        except (ValueError, KeyError, TypeError):
            continue  # half a line: the disk was full


def lines_of(path: Path) -> Iterator[str]:
    """Of a file that may not be there."""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file


def coming(path: Path) -> Iterator[str]:
    """Whole lines that are added from now on, also after the file was turned over."""
    file = path.open(encoding="utf-8", errors="replace")
    file.seek(0, 2)
    rest = ""
    while True:
        is_over = _is_turned_over(path, file)  # asked first: then all that it ever got is read below
        rest += file.readline()
        if rest.endswith("\n"):
            yield rest
            rest = ""
        elif is_over:
            file.close()
            file, rest = path.open(encoding="utf-8", errors="replace"), ""
        else:
            time.sleep(POLL_S)


def _is_turned_over(path: Path, file: TextIO) -> bool:
    """Whether the path leads to another file by now; while it leads nowhere it does not."""
    try:
        return path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False
