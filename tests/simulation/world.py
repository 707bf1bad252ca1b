"""Simulated time and network: a heap of actions and lossy links, all from one seed.

Nothing here knows the protocol. The same seed gives the same history.
"""

import functools
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], None]
AT_ONCE_MAX = 10_000


@dataclass
class Link:
    """One direction between two peers."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_min: float = 0.005
    delay_max: float = 0.05
    bytes_per_s: float = 1000.0
    is_cut: bool = False


@dataclass
class World:
    """Clock, heap, randomness, links, transcript."""

    seed: int
    now: float = 0.0
    heap: list[tuple[float, int, Action]] = field(default_factory=list)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    transcript: list[str] = field(default_factory=list)
    num_events: int = 0
    num_at_once: int = 0
    """Actions since time moved last."""
    keeps_transcript: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._order = 0

    def at(self, when: float, action: Action) -> None:
        self._order += 1
        heapq.heappush(self.heap, (max(when, self.now), self._order, action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def link(self, source: str, target: str) -> Link:
        link = self.links.get((source, target))
        if link is None:
            link = self.links[source, target] = Link()
        return link

    def deliver(self, source: str, target: str, action: Action) -> None:
        """Carry a message: maybe lost, delayed, doubled; reordering follows from the delays."""
        link = self.link(source, target)
        copies = 2 if self.rng.random() < link.duplication else 1
        for _ in range(copies):
            if link.is_cut or self.rng.random() < link.loss:
                continue
            delay_s = self.rng.uniform(link.delay_min, link.delay_max)
            self.at(self.now + delay_s, functools.partial(_arrive, link, action))

    def log(self, text: str) -> None:
        if self.keeps_transcript:
            self.transcript.append(f"{self.now:9.3f}  {text}")

    def step(self) -> bool:
        """Do the next thing; False when there is none."""
        if not self.heap:
            return False
        before = self.now
        self.now, _, action = heapq.heappop(self.heap)
        self.num_events += 1
        self.num_at_once = self.num_at_once + 1 if self.now == before else 0
        assert self.num_at_once < AT_ONCE_MAX, f"something repeats without end: {action}"
        action()
        return True

    def run(self, until: float) -> None:
        while self.heap and self.heap[0][0] <= until:
            self.step()
        self.now = until

    def run_until(self, is_over: Callable[[], bool], limit: float) -> None:
        """Run to the limit; stop earlier when `is_over` holds, looked at twice in simulated seconds."""
        while self.now < limit and not is_over():
            self.run(min(limit, self.now + 0.5))


def _arrive(link: Link, action: Action) -> None:
    if not link.is_cut:
        action()
