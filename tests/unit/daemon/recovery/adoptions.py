"""The operator's word in tests: whom a site sees, and what it was alarmed by."""

from pathlib import Path
from typing import Any

from dilocoxd.answers.peers import Peer
from dilocoxd.daemon.recovery.adoption import Adoption, AdoptionParts
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import PeerId
from dilocoxd.store.log import EntryLog


class Alerts:
    """Stands in for daemon.observe.alert_book.AlertBook."""

    def __init__(self) -> None:
        self.standing: dict[str, str] = {}

    def alert(self, code: str, text: str) -> None:
        self.standing[code] = text

    def clear(self, code: str) -> None:
        self.standing.pop(code, None)


def peer(name: str, height: int, head: bytes, **changes: Any) -> Peer:
    """A live site that says where it stands."""
    fields: dict[str, Any] = {
        "peer_id": name, "name": name, "addresses": (), "is_known": True, "is_live": True,
        "took_part_last_round": False, "membership": "live", "state": "training", "height": height, "rounds_behind": 0,
        "chain_head": head.hex(), "state_digest": "", "last_seen_s": 0.0, "step_seconds": None, "tokens_per_s": None,
        "contributed_round": None, "bandwidth_bytes_per_s": 0, "link_bytes_per_s": None, "has_data": False,
        "no_data_reason": "", "incarnation": 1,
    }  # fmt: skip
    return Peer(**{**fields, **changes})


def adoption_of(folder: Path, log: EntryLog, *peers: Peer, alerts: Alerts | None = None) -> Adoption:
    """Of a site with this log that sees these peers."""

    def peer_called(name: str) -> PeerId:
        if any(row.name == name for row in peers):
            return PeerId(name)
        raise CommandRefused(f"no other site is called {name!r}")

    book: Any = alerts or Alerts()
    return Adoption(AdoptionParts(folder / "adopted", log, lambda: peers, peer_called, book))
