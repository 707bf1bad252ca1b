"""What membership says about one other peer: the form in which it reaches the machines that wait for peers."""

from dataclasses import dataclass

from dilocoxd.ids import Digest, PeerId, RoundIndex


@dataclass(frozen=True, slots=True)
class PeerView:
    """What membership believes about one other peer."""

    peer: PeerId
    is_live: bool
    """False: suspect for too long, dead or left. Messages from it still count, but nobody waits for it."""
    is_training: bool
    """It trains in this run and will contribute; observers, joiners and leaving peers do not."""
    height: RoundIndex
    head: Digest
    step_seconds: float | None = None
    """Time of one of its inner steps, as it says itself; None = unknown."""
