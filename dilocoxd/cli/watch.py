"""`dilocoxd watch`: the status of a daemon, live, through its event stream; a lost connection is shown and heals."""

import json
import shutil
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue, TypeAdapter
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from dilocoxd.answers.peers import Peer
from dilocoxd.answers.status import Status
from dilocoxd.cli.client import ApiClient, client_for
from dilocoxd.cli.screens.status import status_screen
from dilocoxd.errors import PeerError, reason_of
from dilocoxd.site_names import in_words, short_id
from dilocoxd.telemetry.records import line_of

EVENTS_SHOWN: Final = 12
RETRY_S: Final = 2.0
SILENCE_S: Final = 30.0
"""The daemon sends something at least every ten seconds."""


def messages(stream: Any) -> Iterator[tuple[str, str, Any]]:
    """(kind, id, data) of each message of an event stream."""
    kind, ident = "", ""
    for raw in stream:
        name, _, value = raw.decode("utf-8").rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            ident = value
        elif name == "data":
            yield kind, ident, json.loads(value)


class Screen:
    """What is shown."""

    def __init__(self, *, is_once: bool = False) -> None:
        self.is_once = is_once
        self.status: Status | None = None
        self.peers: Sequence[Peer] = ()
        self.events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self.trouble = ""
        self.last_id = ""

    def take(self, kind: str, ident: str, data: Mapping[str, JsonValue]) -> None:
        """One message of the stream. Raises ValueError for a status that is none."""
        self.last_id = ident or self.last_id
        self.trouble = ""
        if kind == "status":
            self.status = TypeAdapter(Status).validate_python(data)
        elif kind == "event":
            self.events.append(in_words(line_of(data), self.label))

    def label(self, peer: str) -> str:
        """What to call it."""
        names = {one.peer_id: one.name for one in self.peers}
        if self.status is not None:
            names[self.status.peer_id] = self.status.name
        return names.get(peer) or short_id(peer)

    def render(self) -> Group:
        """The whole screen."""
        parts: list[Panel | Text] = []
        if self.trouble:
            parts.append(Text(f"connection lost: {self.trouble}; trying again", style="bold yellow"))
        if self.status:
            parts.append(Text(status_screen(self.status, self.peers, shutil.get_terminal_size().columns)))
        parts.append(Panel(Text("\n".join(self.events) or "no events yet"), title="events", title_align="left"))
        return Group(*parts)


def follow(client: ApiClient, screen: Screen, live: Live, deadline: float) -> None:
    """Read one connection until it ends or the time is up. Raises PeerError."""
    path = f"/v1/events?last_event_id={screen.last_id}" if screen.last_id else "/v1/events"
    screen.peers = client.ask("/v1/peers", list[Peer])
    silence_s = min(SILENCE_S, max(0.1, deadline - time.monotonic()))
    with client.lines(path, timeout_s=silence_s) as stream:
        for kind, ident, data in messages(stream):
            screen.take(kind, ident, data)
            if kind == "status":
                screen.peers = client.ask("/v1/peers", list[Peer])
            live.update(screen.render(), refresh=True)
            if time.monotonic() >= deadline or (screen.is_once and screen.status):
                return
    raise PeerError("the daemon closed the stream")


def watch(target: str | None, seconds: float, once: bool) -> int:
    """Exit code of `dilocoxd watch` (cli/declared/watching.py). Raises ConfigError."""
    client = client_for(target)
    screen = Screen(is_once=once)
    deadline = time.monotonic() + seconds if seconds else float("inf")
    with Live(screen.render(), console=Console(highlight=False), auto_refresh=False) as live:
        while time.monotonic() < deadline:
            try:
                follow(client, screen, live, deadline)
            except (PeerError, OSError, ValueError) as error:
                if time.monotonic() >= deadline:
                    break
                screen.trouble = reason_of(error)
                live.update(screen.render(), refresh=True)
                time.sleep(min(RETRY_S, max(0.0, deadline - time.monotonic())))
            except KeyboardInterrupt:
                return 0
            else:
                return 0
    return 0
