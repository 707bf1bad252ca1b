"""Keeps looking at the sites while they are tormented: newest status of each, and waits that break rule R-e."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.harness.running.sites import SiteProcess

LOOK_EVERY_S = 0.5
ANSWER_S = 5.0
"""A site that says nothing for so long does not answer: some are frozen on purpose, and looked at all the same."""
STATE_FIELDS = ("height", "chain_head", "anchor_sha256", "state_digest")
UNEXPLAINED_S = 3.0
"""A site that neither trains nor says what it waits for is reported when it was seen so for this long."""
LOOK_COUNTS_S = 2 * LOOK_EVERY_S
"""A look stands for no longer than this: what was between two that lie further apart, nobody saw."""


@dataclass
class Seen:
    """What one site has shown."""

    status: dict[str, Any] = field(default_factory=dict)
    is_answering: bool = False
    states: list[tuple[float, tuple[Any, ...]]] = field(default_factory=list)
    """When which (height, chain head, anchor, digest) was seen."""
    mute_s: float = 0.0
    """For how long it was seen without a reason, until `mute_looked_at`."""
    mute_looked_at: float = 0.0
    unexplained: list[str] = field(default_factory=list)

    def take(self, status: dict[str, Any]) -> None:
        """Remember an answer; {} is none."""
        self.is_answering = bool(status)
        if not status:
            self.mute_s = self.mute_looked_at = 0.0
            return
        self.status = status
        state = tuple(status.get(name) for name in STATE_FIELDS)
        if None not in state and "" not in state and (not self.states or self.states[-1][1] != state):
            self.states.append((time.monotonic(), state))
        self._check_reason(status)

    def _check_reason(self, status: dict[str, Any]) -> None:
        now, is_mute = time.monotonic(), status.get("state") != "training" and not status.get("waiting_for")
        if is_mute and self.mute_looked_at:
            self.mute_s += min(now - self.mute_looked_at, LOOK_COUNTS_S)
        self.mute_s, self.mute_looked_at = (self.mute_s, now) if is_mute else (0.0, 0.0)
        if self.mute_s > UNEXPLAINED_S:
            self.unexplained.append(f"state {status.get('state')} for {self.mute_s:.1f} s without a reason")
            self.mute_s = 0.0

    @property
    def state(self) -> str:
        return str(self.status.get("state") or "-") if self.is_answering else "-"

    @property
    def height(self) -> int:
        return int(self.status.get("height") or 0)

    @property
    def peer(self) -> str:
        return str(self.status.get("peer_id") or "")


class Watch:
    """One thread per site; a context manager."""

    def __init__(self, sites: list[SiteProcess]) -> None:
        self.seen = {site.name: Seen() for site in sites}
        for site in sites:
            site.answer_s = ANSWER_S
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._look, args=(site,), daemon=True) for site in sites]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)

    def _look(self, site: SiteProcess) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.seen[site.name].take(site.status())

    def common_state(self, since: float) -> tuple[Any, ...] | None:
        """The newest state that every site has shown after `since`; None if there is none yet."""
        shown = [[state for at, state in seen.states if at >= since] for seen in self.seen.values()]
        common = set.intersection(*(set(states) for states in shown)) if all(shown) else set()
        return max(common, default=None)
