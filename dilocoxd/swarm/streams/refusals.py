"""What a refusal says: its codes, the error that it becomes here, and words that both sides read."""

from typing import Final

from dilocoxd.errors import PeerError

NOT_LET_IN: Final = frozenset(
    {
        "wrong_run",
        "not_admitted",
        "bad_certificate",
        "bad_membership",
        "evicted",
        "invite_expired",
        "invite_used_up",
        "invite_void",
        "not_allowed",
    }
)
"""Refusals that only whoever invites can change."""


class Refused(PeerError):
    """The other side answered Refuse."""

    def __init__(self, peer: str, code: str, detail: str, proof: bytes = b"") -> None:
        super().__init__(f"{peer} refused: {code}: {detail}")
        self.code = code
        self.detail = detail
        self.proof = proof
        """An encoded Revocation, as the other side sent it: not checked."""


def other_protocols(*, asked: int, asking: int) -> str:
    """What both sides read when their major versions differ: no `we`, which each would take for itself."""
    return (
        f"the site that was asked speaks protocol {asked}, the one that asks {asking}; update dilocoxd on the older one"
    )
