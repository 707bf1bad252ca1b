"""Names of things, as types: a RoundIndex is never a PhaseId and a Monotonic is never a UnixTime."""

import re
from typing import Final, NewType

PeerId = NewType("PeerId", str)
"""libp2p peer id of a daemon, base58 text (``Qm...``). One per site."""

BASE58: Final = "1-9A-HJ-NP-Za-km-z"
"""Characters of a peer id, for a class of a regular expression."""
PEER_ID_FORM: Final = rf"[{BASE58}]{{40,60}}"
"""Regular expression of a peer id."""

RunId = NewType("RunId", str)
"""``<name>-<first 16 hex digits of the manifest's sha256>``."""

RoundIndex = NewType("RoundIndex", int)
"""Height in the log: round k turns shared state k into shared state k + 1. 0-based."""

Attempt = NewType("Attempt", int)
"""Try at one round, 0-based."""

PhaseId = NewType("PhaseId", int)
"""Counter of a site's phases, persisted, never reused: (peer, phase) names one contribution."""

Digest = NewType("Digest", bytes)
"""sha256, 32 bytes."""

Monotonic = NewType("Monotonic", float)
"""Seconds of the event loop's clock; only for deadlines inside one process."""

UnixTime = NewType("UnixTime", float)
"""Seconds since 1970; only in records that leave the process."""


def is_peer_id(text: str) -> bool:
    """Whether the text has the form of a base58 peer id (its key is another question)."""
    return re.fullmatch(PEER_ID_FORM, text) is not None
