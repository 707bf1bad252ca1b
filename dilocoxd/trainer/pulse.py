"""Signs of life from the middle of long work: an inner step, a validation, a first pass that compiles.

The daemon takes silence for a hang (machines/phase/trainer_state.py). A step of a large model on a slow machine is
silent for minutes, but no block of it is: each block says that it was computed, forwards and backwards, at most once a
second. Numbers are not touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from torch import Tensor, nn

INTERVAL_S: Final = 1.0


class Pulse:
    """Calls `beat` when a block was computed, not more often than once in INTERVAL_S."""

    def __init__(self, beat: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._beat = beat
        self._clock = clock
        self._last = clock()

    def listen_to(self, modules: Iterable[nn.Module]) -> None:
        """To all blocks: what these modules keep in lists, and the modules themselves."""
        for module in modules:
            rows = [part for part in module.modules() if isinstance(part, nn.ModuleList | nn.ModuleDict)]
            for block in [module, *(block for row in rows for block in row.children())]:
                block.register_forward_hook(self._computed)

    def _computed(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self._tick()
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and first.requires_grad:
            listen: Callable[[Callable[[Tensor], None]], object] = first.register_hook
            listen(self._went_back)

    def _went_back(self, _gradient: Tensor) -> None:
        self._tick()

    def _tick(self) -> None:
        now = self._clock()
        if now - self._last >= INTERVAL_S:
            self._last = now
            self._beat()
