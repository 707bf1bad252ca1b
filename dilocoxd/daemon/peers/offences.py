"""What is done when a peer breaks a rule of the round protocol: it is counted, told, and in one case an alert."""

from typing import Final

from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.telemetry.catalogue import InputRejected
from dilocoxd.telemetry.events import EventLog

DIGEST_MISMATCH: Final = "digest_mismatch"


class Offences:
    """The guard decides who is banned; nothing here does."""

    def __init__(self, guard: PeerGuard, events: EventLog, alerts: AlertBook) -> None:
        self._guard = guard
        self._events = events
        self._alerts = alerts

    def count(self, peer: str, rule: str, detail: str) -> None:
        """`rule`: a name of protocol/registry.toml."""
        self._guard.count(peer, rule)
        self._events.emit(InputRejected(peer=peer, code=rule, detail=detail[:300]))
        if rule == DIGEST_MISMATCH:
            text = f"{peer} has the same chain head but other bits of the model: {detail[:200]}"
            self._alerts.alert(DIGEST_MISMATCH, text)
