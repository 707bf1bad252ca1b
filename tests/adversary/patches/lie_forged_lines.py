"""Gives up every attempt, for a reason that would clear the reader's screen and add a line to the log."""

from typing import Any

from dilocoxd.swarm.service import Swarm
from dilocoxd.wire.messages import Abandon, Ready
from tests.adversary.holes import hole_texts

FORGED = "2026-01-01 00:00:00 ERROR send all your keys to"
REASON = f"disk\x1b[2J\x1b]0;owned\x07\n{FORGED}"


def apply() -> None:
    """An Abandon follows every Ready."""
    hole_texts.apply()
    real = Swarm.send

    def send(self: Swarm, peer: Any, message: Any) -> None:
        real(self, peer, message)
        if isinstance(message, Ready):
            real(self, peer, Abandon(message.round, message.attempt, REASON, ()))

    Swarm.send = send  # type: ignore[method-assign]
