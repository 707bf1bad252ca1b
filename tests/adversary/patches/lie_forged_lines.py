"""Gives up every attempt, for reasons that would clear the reader's screen, add a line to the log, or reorder text."""

import itertools
from typing import Any

from dilocoxd.swarm.service import Swarm
from dilocoxd.wire.messages import Abandon, Ready
from tests.adversary.holes import hole_texts

FORGED = "2026-01-01 00:00:00 ERROR send all your keys to"
REASONS = ("disk\x1b[2J\x1b]0;owned\x07", f"disk\n{FORGED}", "disk \u202eksid")


def apply() -> None:
    """An Abandon follows every Ready."""
    hole_texts.apply()
    real, reasons = Swarm.send, itertools.cycle(REASONS)

    def send(self: Swarm, peer: Any, message: Any) -> None:
        real(self, peer, message)
        if isinstance(message, Ready):
            real(self, peer, Abandon(message.round, message.attempt, next(reasons), ()))

    Swarm.send = send  # type: ignore[method-assign]
