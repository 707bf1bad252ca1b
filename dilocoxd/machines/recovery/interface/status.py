"""What a recovery tells the operator while it runs."""

from dataclasses import dataclass

from dilocoxd.ids import Monotonic, PeerId

OWN_STATES = ("taking_back", "rebuilding", "weighing", "restoring", "leaving", "adopting", "applying", "turning_back")
"""Wait for a step of our own site."""
STATES = (*OWN_STATES, "comparing", "choosing", "fetching_chunks", "fetching_payload", "done")


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """For the operator. `deadline` is None only while our own site carries out a step."""

    state: str
    """One of STATES."""
    waiting_for: str
    deadline: Monotonic | None
    patience_s: float | None
    """From the newest question to its deadline."""
    sources: tuple[PeerId, ...]
    """Peers that owe an answer."""
    problems: tuple[str, ...]
    """Sources that gave wrong bytes, and why other peers were of no use."""
    late: tuple[tuple[PeerId, str], ...] = ()
    """Sources that did not give what they were asked for, or not in time, and what is known of that."""
