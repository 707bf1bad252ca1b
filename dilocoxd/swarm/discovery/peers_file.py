"""peers.json: whom we have met and where, so that a restarted site finds its swarm without its bootstrap peers.

Also keeps the incarnation, the counter of our starts. The file is a convenience: a damaged one is set aside.
"""

import base64
import binascii
import contextlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, RunId, is_peer_id
from dilocoxd.store.durable import write_json
from dilocoxd.swarm.discovery.records import verify_record
from dilocoxd.wire.messages import RECORD_BYTES_MAX
from dilocoxd.wire.records import ADDRESSES_MAX, is_address

PEERS_MAX: Final = 256
FILE_BYTES_MAX: Final = 8 * 1024 * 1024
UNUSABLE: Final = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""What reading a damaged file raises."""


@dataclass(slots=True)
class Remembered:
    """One peer as the file knows it."""

    peer: PeerId
    addresses: tuple[str, ...]
    """Multiaddrs, the one that worked last first."""
    seen_unix_ms: int = 0
    record: bytes = b""
    """Its newest signed record; verified again when loaded."""


@dataclass(slots=True)
class PeersFile:
    """Content of peers.json."""

    path: Path
    incarnation: int = 0
    peers: dict[PeerId, Remembered] = field(default_factory=dict)
    _saving: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Held by who writes: two at once take each other's temporary file. Who is ended while a thread of it writes goes
    on to the last save at once."""

    def load(self) -> str:
        """Fill from the file. Returns why the file could not be used (it is set aside), or an empty text."""
        try:
            self._read()
        except FileNotFoundError:
            return ""
        except UNUSABLE as error:
            with contextlib.suppress(OSError):
                self.path.rename(self.path.with_suffix(".json.bad"))
            return f"{type(error).__name__}: {error}"
        return ""

    def _read(self) -> None:
        if self.path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError("too large")
        content = json.loads(self.path.read_bytes())
        self.incarnation = _whole(content["incarnation"])
        for item in content["peers"][:PEERS_MAX]:
            remembered = _remembered(item)
            self.peers[remembered.peer] = remembered

    def names(self, run_id: RunId) -> dict[PeerId, str]:
        """What the sites called themselves, as far as the file can be used; it stays as it is."""
        with contextlib.suppress(*UNUSABLE):
            self._read()
        found: dict[PeerId, str] = {}
        for peer in self.peers.values():
            with contextlib.suppress(WireError):  # none was heard, or of a version before
                found[peer.peer] = verify_record(peer.record, run_id).name
        return found

    def remember(self, peer: PeerId, addresses: tuple[str, ...], seen_unix_ms: int, record: bytes = b"") -> None:
        """Put these addresses before those known already."""
        known = self.peers.setdefault(peer, Remembered(peer, (), seen_unix_ms))
        while len(self.peers) > PEERS_MAX:
            del self.peers[min((p for p in self.peers if p != peer), key=lambda one: self.peers[one].seen_unix_ms)]
        known.addresses = tuple(dict.fromkeys((*addresses, *known.addresses)))[:ADDRESSES_MAX]
        known.seen_unix_ms = max(known.seen_unix_ms, seen_unix_ms)
        known.record = record or known.record

    def save(self) -> None:
        """Write the file, the most recently seen peers only. Raises StoreError. Blocks: call it in a thread."""
        with self._saving:
            write_json(self.path, self._content())

    def _content(self) -> dict[str, object]:
        newest = sorted(self.peers.values(), key=lambda item: -item.seen_unix_ms)[:PEERS_MAX]
        return {
            "incarnation": self.incarnation,
            "peers": [
                {
                    "peer": item.peer,
                    "addresses": list(item.addresses),
                    "seen_unix_ms": item.seen_unix_ms,
                    "record": base64.b64encode(item.record).decode("ascii"),
                }
                for item in newest
            ],
        }


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r} is no count")
    return value


def _remembered(item: Any) -> Remembered:
    peer, addresses = item["peer"], item["addresses"]
    if not isinstance(peer, str) or not is_peer_id(peer) or not isinstance(addresses, list):
        raise ValueError("entry without peer id or addresses")
    if not all(isinstance(address, str) and is_address(address) for address in addresses):
        raise ValueError(f"bad address of {peer}")
    try:
        record = base64.b64decode(item["record"], validate=True)[:RECORD_BYTES_MAX]
    except binascii.Error as error:
        raise ValueError(f"bad record of {peer}") from error
    return Remembered(PeerId(peer), tuple(addresses[:ADDRESSES_MAX]), _whole(item["seen_unix_ms"]), record)
