"""Decides what whoever joins in vain is told: which address, what is there, how long it was tried, what to do.

The sentence names each address once; the stages are for events and for machines.
"""

from collections.abc import Sequence
from typing import Final

from dilocoxd.errors import DilocoxdError, PeerError
from dilocoxd.swarm.p2pd.addresses import Address

UNKNOWN_NAME: Final = "unknown_name"
OTHER_PEER: Final = "other_peer"

_CHECK_NAME: Final = "check how it is written, or give the site's IP address in its place"
_ASK_THERE: Final = (
    "see with `dilocoxd status` on that machine whether the site runs, and whether its TCP port is open and forwarded;"
    " `dilocoxd invite RUN_DIR` there prints a link of now"
)
_OLD_LINK: Final = (
    "the link is old, or its address belongs to another site by now: have `dilocoxd invite RUN_DIR` print a link of now"
    " on the machine that you want to join"
)
_OF_STAGES: Final = {"resolve": _CHECK_NAME, "connect": _ASK_THERE}
"""The reasons of the other stages say themselves what to do, or that a site is there."""


class StageFailure(PeerError):
    """Where joining over one address stopped, and why."""

    def __init__(self, address: Address, stage: str, reason: str, *, is_final: bool = False, code: str = "") -> None:
        super().__init__(f"{address.text}: {stage}: {reason}")
        self.address = address
        self.stage = stage
        self.reason = reason
        self.code = code
        """Of the refusal, if it was one."""
        self.is_final = is_final
        """Trying again cannot help: another run or version, a wrong clock."""

    @property
    def is_in_vain(self) -> bool:
        """Trying again within a minute cannot help; a name may be made, or another key be brought, tomorrow."""
        return self.is_final or self.code in (UNKNOWN_NAME, OTHER_PEER)

    @property
    def told(self) -> str:
        """The reason, with the address if it is not in there."""
        if self.address.host in self.reason:
            return self.reason
        return f"{self.address.host} port {self.address.port}: {self.reason}"

    @property
    def remedy(self) -> str:
        """What whoever joins can do; empty: the reason says it."""
        return _OLD_LINK if self.code == OTHER_PEER else _OF_STAGES.get(self.stage, "")


class JoinError(DilocoxdError):
    """No address led to a peer, or the one that answered did not send what it was asked for; each is named once."""

    def __init__(self, failures: Sequence[StageFailure], waited_s: float | None = None) -> None:
        """`waited_s`: how long the addresses were tried; None: one of them answered."""
        told = list(dict.fromkeys(one.told for one in failures))
        remedies = [text for text in dict.fromkeys(one.remedy for one in failures) if text]
        tried = "once" if waited_s is None or waited_s < 1 else f"for {waited_s:.0f} s"
        head = "joining stopped:" if waited_s is None else f"no site of the run was reached (tried {tried}):"
        is_one = len(told) == 1
        super().__init__(
            "; ".join([f"{head} {told[0]}", *remedies]) if is_one else "\n  ".join([head, *told, *remedies])
        )
        self.failures = tuple(failures)
