"""`dilocoxd watch`: the status of a daemon, live, through its event stream; a lost connection is shown and heals."""

import json
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from dilocoxd.cli.client import ApiClient, client_for
from dilocoxd.cli.status import view
from dilocoxd.errors import PeerError

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
        self.status: dict[str, Any] = {}
        self.peers: list[dict[str, Any]] = []
        self.events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self.trouble = ""
        self.last_id = ""

    def take(self, kind: str, ident: str, data: Any) -> None:
        """One message of the stream."""
        self.last_id = ident or self.last_id
        self.trouble = ""
        if kind == "status":
            self.status = data
        elif kind == "event":
            self.events.append(line(data))

    def render(self) -> Group:
        """The whole screen."""
        parts: list[Any] = []
        if self.trouble:
            parts.append(Text(f"connection lost: {self.trouble}; trying again", style="bold yellow"))
        if self.status:
            parts.append(view(self.status, self.peers))
        parts.append(Panel(Text("\n".join(self.events) or "no events yet"), title="events", title_align="left"))
        return Group(*parts)


def line(record: dict[str, Any]) -> str:
    """One event for people."""
    facts = {k: v for k, v in record.items() if k not in ("time", "event", "level") and v not in ("", [], None)}
    clock = time.strftime("%H:%M:%S", time.localtime(record["time"]))
    return f"{clock} {record['event']} " + " ".join(f"{name}={str(value)[:60]}" for name, value in facts.items())


def follow(client: ApiClient, screen: Screen, live: Live, deadline: float) -> None:
    """Read one connection until it ends or the time is up. Raises PeerError."""
    path = f"/v1/events?last_event_id={screen.last_id}" if screen.last_id else "/v1/events"
    screen.peers = client.ask("/v1/peers")
    silence_s = min(SILENCE_S, max(0.1, deadline - time.monotonic()))
    with client.lines(path, timeout_s=silence_s) as stream:
        for kind, ident, data in messages(stream):
            screen.take(kind, ident, data)
            if kind == "status":
                screen.peers = client.ask("/v1/peers")
            live.update(screen.render(), refresh=True)
            if time.monotonic() >= deadline or (screen.is_once and screen.status):
                return
    raise PeerError("the daemon closed the stream")


@click.command()
@click.argument("target", metavar="[URL | RUN_DIR]", required=False)
@click.option("--seconds", type=float, default=0.0, help="End after this time; 0 is never.")
@click.option("--once", is_flag=True, help="End as soon as there is something to show.")
def watch(target: str | None, seconds: float, once: bool) -> int:
    """Show the status of a daemon, live. Ctrl-C ends it."""
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
                screen.trouble = str(error)
                live.update(screen.render(), refresh=True)
                time.sleep(min(RETRY_S, max(0.0, deadline - time.monotonic())))
            except KeyboardInterrupt:
                return 0
            else:
                return 0
    return 0
