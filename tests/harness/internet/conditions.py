"""What a link does to packets, decided packet by packet: when each arrives, or that it never does. Pure."""

import random
from dataclasses import dataclass

QUEUE_BYTES = 32 << 20
"""Most bytes under way to one site; more are dropped, as a router drops them. 1 Gbit/s over 250 ms fits."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """One way of a link; both ways alike make an `rtt` of twice the delay. Seconds and probabilities.

    `jitter_s` is added evenly from 0 and keeps the order; a packet that is `reordered` takes half the delay instead.
    `bit_per_s` 0: as fast as the forwarder can.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    reordered: float = 0.0
    bit_per_s: float = 0.0


def rtt(seconds: float, loss: float = 0.0, jitter_s: float = 0.0, bit_per_s: float = 0.0) -> Conditions:
    """Links whose round trip takes `seconds`."""
    return Conditions(seconds / 2, jitter_s, loss, 0.0, bit_per_s)


class LinkQueue:
    """The way to one site: how much is under way, and when the next packet arrives."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._bytes = 0
        self._line_free_at = 0.0
        self._last_at = 0.0
        self.lost = self.overflowed = self.delivered = 0

    def due(self, size: int, conditions: Conditions, now: float) -> float | None:
        """When a packet of `size` bytes that was sent `now` arrives; None: never."""
        if conditions.loss and self._rng.random() < conditions.loss:
            self.lost += 1
            return None
        if self._bytes + size > QUEUE_BYTES:
            self.overflowed += 1
            return None
        self._bytes += size
        sent_at = now
        if conditions.bit_per_s:
            self._line_free_at = max(self._line_free_at, now) + 8 * size / conditions.bit_per_s
            sent_at = self._line_free_at
        if conditions.reordered and self._rng.random() < conditions.reordered:
            return sent_at + conditions.delay_s / 2
        at = sent_at + conditions.delay_s + conditions.jitter_s * self._rng.random()
        self._last_at = max(self._last_at, at)
        return self._last_at

    def arrived(self, size: int) -> None:
        """A packet has left the queue."""
        self._bytes -= size
        self.delivered += 1
