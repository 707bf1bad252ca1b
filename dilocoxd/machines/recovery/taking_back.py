"""Leaves our chain at an entry that a majority has taken back: the state before it, from our own disk, is ours again.

Nothing is set aside, for there is no way back. Where our disk does not lead to that state we stay, and follow the
branch that others make without the entry. Source: protocol/06-rounds.md, R29.
"""

from collections.abc import Set

from dilocoxd.ids import Digest, RoundIndex
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.machines.recovery.outcomes import Complete, NotBetter, Outcome
from dilocoxd.machines.recovery.own_chain import OwnChain
from dilocoxd.wire.entry import entry_hash


class TakingBack:
    """`fork`: round of the entry; `reverted`: it, and others that were taken back."""

    peer = None
    """It concerns no peer's chain."""

    def __init__(self, fork: RoundIndex, chain: OwnChain, reverted: Set[Digest]) -> None:
        self.fork = fork
        self._chain = chain
        self._reverted = reverted

    def start(self) -> r.ReadOwn:
        """Whether it can be done."""
        return r.ReadOwn(self.fork)

    def on_step(self, done: r.StepDone) -> Outcome:
        """Our site has carried out the step under way."""
        match done:
            case r.OwnRead(own, can_replay):
                spoiled = frozenset(entry_hash(entry) for entry in own) & self._reverted
                if not can_replay or not spoiled:
                    return NotBetter()
                return r.LeaveOwn(Branch(self.fork, ()), own, self._chain.in_flight, reverted=spoiled)
            case r.OwnLeft():
                return r.Rebuild()
            case r.Rebuilt():
                return Complete()
            case _:
                raise AssertionError(f"{type(done).__name__} belongs to no step of taking an entry back")
