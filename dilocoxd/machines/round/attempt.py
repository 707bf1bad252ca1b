"""One attempt at a round: built when it is entered, dropped when it ends, so that nothing of it is left over.

What it was told of proposals, its exchange, the entry that is voted on and its moments lie here; it decides nothing.
"""

from collections.abc import Sequence
from typing import Final

from dilocoxd.ids import Attempt, Monotonic, PeerId
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.round.locks import HeldLock
from dilocoxd.machines.round.timers import PROGRESS, Mark, Timers
from dilocoxd.wire.messages import Propose, ProposeCommit

Proposal = Propose | ProposeCommit
PROPOSALS_MAX: Final = 64
"""Kept of one attempt: each may take a MiB, and ids that make some cost nothing."""


class RunningAttempt:
    """The attempt that we are in. `index`: its number."""

    def __init__(self, index: Attempt, since: Monotonic) -> None:
        self.index: Final = index
        self.timers: Final = Timers()
        self.timers.start(Mark.ATTEMPT, since)
        self.coordinator: PeerId | None = None
        """Whose proposal we took up or made."""
        self.exchange: Exchange | None = None
        self.voted_on: HeldLock | None = None
        """The entry that is being voted on; for a voter it is also the height's lock."""
        self.proposals: dict[PeerId, Proposal] = {}
        """Proposals that could not be taken up yet."""
        self.promised_to: tuple[PeerId, Propose] | None = None
        """The proposal that we accepted as an observer before we could receive anything."""
        self.left_out_by: set[PeerId] = set()
        """Who sent us proposals that leave us out."""
        self.finishing: ProposeCommit | None = None
        """What we proposed as the coordinator, voter or not: a locked entry."""
        self.shown: dict[PeerId, tuple[bytes, ...]] = {}
        """Result hashes that members showed because votes differ."""

    @property
    def since(self) -> Monotonic:
        """When it was entered."""
        since = self.timers.since(Mark.ATTEMPT)
        assert since is not None
        return since

    @property
    def is_left_out(self) -> bool:
        """A round of this attempt goes on without us."""
        return self.timers.is_running(Mark.LEFT_OUT)

    @property
    def parties(self) -> frozenset[PeerId]:
        """Without whom it cannot end."""
        if self.voted_on is not None:
            return frozenset(self.voted_on.voters)
        return frozenset(self.exchange.group) if self.exchange is not None else frozenset()

    @property
    def observers(self) -> tuple[PeerId, ...]:
        """Who receives the results of its exchange without contributing."""
        return self.exchange.propose.observers if self.exchange is not None else ()

    def withheld_with(self, peer: PeerId, limits: RoundLimits, now: Monotonic) -> tuple[PeerId, ...]:
        """Whom to blame because this peer goes on: it may withhold its share, and leave each attempt just before it
        would be named (R12.11)."""
        withheld = self.exchange.withheld_by() if self.exchange is not None else frozenset()
        if peer not in withheld:
            return ()
        since = self.timers.end(PROGRESS, limits) - PROGRESS.seconds(limits) / 2
        return tuple(withheld) if now >= since else ()

    def note_left_out(self, peer: PeerId, now: Monotonic) -> None:
        """The peer proposed a group without us. One alone that repeats it gets no more time (R8)."""
        if self.left_out_by - {peer}:
            self.timers.restart(Mark.LEFT_OUT, now)
        else:
            self.timers.start(Mark.LEFT_OUT, now)
        self.left_out_by.add(peer)

    def keep(self, peer: PeerId, proposal: Proposal, now: Monotonic) -> None:
        """A proposal to be taken up when that is possible; a newer one of the same peer replaces it."""
        self.proposals[peer] = proposal
        self.timers.start(Mark.PROPOSAL, now, peer)

    def keep_first(self, order: Sequence[PeerId]) -> None:
        """Of too many proposals those at the end of this order go."""
        for peer in order[PROPOSALS_MAX:]:
            self.drop(peer)

    def drop(self, peer: PeerId) -> None:
        """Its proposal broke a rule."""
        del self.proposals[peer]
        self.timers.stop(Mark.PROPOSAL, peer)

    def begin(self, coordinator: PeerId, exchange: Exchange, now: Monotonic) -> None:
        """A proposal is taken up."""
        self.coordinator, self.exchange, self.proposals = coordinator, exchange, {}
        self.timers.restart(Mark.PROGRESS, now)

    def vote_on(self, voted_on: HeldLock, now: Monotonic) -> None:
        """There is an entry to be voted on."""
        self.voted_on, self.proposals = voted_on, {}
        self.timers.restart(Mark.VOTED_ON, now)

    def stop(self) -> None:
        """We catch up: nothing of it goes on, though we may come back to it."""
        self.exchange, self.voted_on, self.finishing = None, None, None
