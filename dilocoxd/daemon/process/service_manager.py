"""Tells the service manager (systemd, Type=notify) when we are ready, what we wait for, and that we make progress.

Moves datagrams to $NOTIFY_SOCKET; decides when the watchdog is fed: only while this loop runs *and* every part that is
asked shows progress since the last time. Without a service manager nothing is sent. Source: sd_notify(3).

Test hook: if DILOCOXD_TEST_BLOCK names a file and that file appears, a daemon under a watchdog stops making progress:
the word in the file says which part, `loop` (blocked for good) or `supervisor` (its progress is no longer seen).
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dilocoxd.answers.status import Status
from dilocoxd.answers.words import figure

BLOCK_VARIABLE: Final = "DILOCOXD_TEST_BLOCK"
TICK_MAX_S: Final = 2.0
FEEDS_PER_LIMIT: Final = 4
"""How often the watchdog is fed within its limit when all goes well."""
STATUS_BYTES_MAX: Final = 400
PROBE_TIMEOUT_S: Final = 5.0
PROBE_PAUSE_S: Final = 0.2

Beat = Callable[[], int | None]
"""A counter that rises with every piece of work a part has done (None: it does not run yet); asking also gives the
part something to do."""
Address = tuple[str, int] | None


class ServiceManager:
    """One datagram socket; mute if nobody listens."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")
        self._block_file = environment.get(BLOCK_VARIABLE, "")
        self.watchdog_s = _watchdog_s(environment)
        self._is_stopping = False

    def send(self, **fields: str) -> None:
        """One message of KEY=value lines. A service manager that does not listen any more is no reason to fail."""
        if not self._path:
            return
        text = "\n".join(f"{name}={_one_line(value)}" for name, value in fields.items())
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
            try:
                sender.sendto(text.encode("utf-8"), address)
            except OSError:
                return

    def stopping(self, reason: str) -> None:
        """The stop list has begun; from now on only the loop has to make progress, the parts end."""
        self._is_stopping = True
        self.send(STOPPING="1", STATUS=f"leaving: {reason}")

    async def run(self, address: Address, status: Callable[[], Status], beats: Mapping[str, Beat]) -> None:
        """READY once the HTTP API at `address` answers, then status and watchdog; runs until cancelled."""
        if not self._path:
            return
        while address is not None and not await _answers(address):  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(PROBE_PAUSE_S)
        self.send(READY="1", STATUS=status_line(status()))
        watch, clock = ProgressWatch(beats, self.watchdog_s / 2), asyncio.get_running_loop().time
        tick_s = min(TICK_MAX_S, self.watchdog_s / FEEDS_PER_LIMIT) if self.watchdog_s else TICK_MAX_S
        while True:
            await asyncio.sleep(tick_s)
            stuck = watch.look(clock()) if self.watchdog_s and not self._is_stopping else ()
            if self._is_blocked_for_test() or stuck:
                self.send(STATUS=f"no progress of {', '.join(stuck) or 'the supervisor'}: the watchdog is not fed")
            elif self._is_stopping:
                self.send(WATCHDOG="1")
            else:
                self.send(WATCHDOG="1", STATUS=status_line(status()))

    def _is_blocked_for_test(self) -> bool:
        if not self._block_file or not Path(self._block_file).exists():
            return False
        while Path(self._block_file).read_text().strip() == "loop":
            time.sleep(1.0)  # blocks the loop, as a bug would
        return True


class ProgressWatch:
    """Which parts have done nothing for too long."""

    def __init__(self, beats: Mapping[str, Beat], patience_s: float) -> None:
        self._beats = beats
        self._patience_s = patience_s
        self._moved: dict[str, tuple[int | None, float]] = {}

    def look(self, now: float) -> tuple[str, ...]:
        """Names of the parts whose counter has not moved for `patience_s`; parts that do not run yet are not among."""
        stuck = []
        for name, beat in self._beats.items():
            count = beat()
            if name not in self._moved or self._moved[name][0] != count:
                self._moved[name] = count, now
            elif count is not None and now - self._moved[name][1] > self._patience_s:
                stuck.append(name)
        return tuple(stuck)


def status_line(status: Status) -> str:
    """What `systemctl status` shows: state, outer step, loss, peers, and what it waits for."""
    parts = [f"{status.state}, outer step {status.height}"]
    loss = status.losses.inner
    if loss is not None:
        parts.append(f"loss {figure(loss)}")
    parts.append(f"{status.peers.live} other sites live")
    if status.waiting_for:
        parts.append(f"waits for {status.waiting_for}")
    return ", ".join(parts)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """The limit that concerns this process; 0: there is no watchdog."""
    limit = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    return int(limit) / 1e6 if limit.isdecimal() and pid in ("", str(os.getpid())) else 0.0


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line.encode("utf-8")[:STATUS_BYTES_MAX].decode("utf-8", "ignore")


async def _answers(address: tuple[str, int]) -> bool:
    """Whether the API takes a request there and reacts; with TLS it refuses this one, which shows as much."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, address[1])
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                await reader.read(1)
                return True
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
