"""How long a rank of a pipeline computes in an inner step; what is left of the step it waits for the others (bubble).

On a GPU the marks are the device's own, in its stream, and are read behind the one wait for it that a step has anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class StepClock:
    """`begin`, `computing` around each piece of work, `read` when the host has waited for the device, `waited`."""

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        """`now`: seconds of the host."""
        self._is_on_gpu = device.type == "cuda"
        self._now = now
        self._spans: list[tuple[Any, Any]] = []
        self._began: Any = None
        self._span_s = 0.0
        self._read_at = 0.0

    def begin(self) -> None:
        """A step begins: what is not in `computing` from here on is waiting."""
        self._spans.clear()
        self._began = self._mark()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """This rank works on what it has."""
        started = self._mark()
        yield
        self._spans.append((started, self._mark()))

    def read(self) -> float:
        """Seconds that this rank has computed since `begin`. The last `computing` was the last work of the device, and
        the host has waited for it."""
        self._read_at = self._now()
        self._span_s = self._seconds(self._began, self._spans[-1][1])
        return sum(self._seconds(*span) for span in self._spans)

    def waited(self, computed_s: float) -> float:
        """Part of the time since `begin` that ranks wait which compute so long on average; called when all of them are
        done with the step."""
        total = self._span_s + self._now() - self._read_at
        return max(0.0, 1.0 - computed_s / total) if total > 0 else 0.0

    def _mark(self) -> Any:
        if not self._is_on_gpu:
            return self._now()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1e3 if self._is_on_gpu else end - start)
