"""What a change of branch does to our own work: what leaves the chain, what it settles, which branch stays at a start.

Pure. Source: protocol/06-rounds.md, R20, R21.
"""

import itertools
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from dilocoxd.ids import Digest, PeerId, PhaseId
from dilocoxd.machines.recovery.branch import Branch, is_better
from dilocoxd.machines.recovery.finality import Place, leads_to
from dilocoxd.machines.round.outputs import InFlight, Settlement
from dilocoxd.wire.entry import Entry, SignedEntry, entry_hash


@dataclass(frozen=True, slots=True)
class Choice:
    """What a start finds when the last process died between two branches: the better one stays."""

    fork: int
    own: tuple[Entry, ...]
    """Was set aside ..."""
    taken: tuple[Entry, ...]
    """... for this, as far as the log has it."""
    goes_back: bool
    """`own` is the chain again, instead of `taken`."""
    reverted: Set[Digest] = frozenset()
    """Entries that were taken back (R29): work that we gave to one, and to what followed it, is owed to nobody."""

    @property
    def left(self) -> tuple[Entry, ...]:
        """Entries that the chain does not have from now on."""
        kept, other = (self.own, self.taken) if self.goes_back else (self.taken, self.own)
        return tuple(entry for entry in other if entry not in kept)

    def dropped(self, me: PeerId) -> tuple[tuple[PhaseId, Entry], ...]:
        """Our contributions that only what is left has, each with its entry: owed again, as after turning back."""
        kept = self.own if self.goes_back else self.taken
        stays = {c.phase for entry in kept for c in entry.contributions if c.peer == me}
        sound = itertools.takewhile(lambda entry: entry_hash(entry) not in self.reverted, self.left)
        left = [(c.phase, entry) for entry in sound for c in entry.contributions if c.peer == me]
        return tuple((phase, entry) for phase, entry in left if phase not in stays)


def choose_at_start(
    own: Sequence[Entry],
    below: Digest | None,
    taken: Sequence[SignedEntry],
    num_replayable: int | None = None,
    adopted: Place | None = None,
    reverted: Set[Digest] = frozenset(),
) -> Choice | None:
    """After a crash between two branches: whether `own`, which was set aside, is the chain again instead of `taken`.

    `below`: head of the log at the fork; None when the log ends below it (it was damaged or lost meanwhile). Of `taken`
    only the first `num_replayable` count. Where `adopted`, the place of the operator, is in them, they stay
    whatever they weigh (R28). A branch with one of `reverted` loses against one without (R29). None: there is no
    choice, the log is what it is.
    """
    if not own or own[0].parent != below:
        return None
    usable = taken[:num_replayable]
    is_sound = reverted.isdisjoint(entry_hash(signed.entry) for signed in usable)
    is_adopted = is_sound and adopted is not None and leads_to(usable, adopted)
    goes_back = not is_adopted and not is_better(Branch(own[0].round, tuple(usable)), own, reverted)
    return Choice(
        own[0].round, tuple(own), tuple(s.entry for s in (taken if goes_back else usable)), goes_back, reverted
    )


def settlement(entry: Entry, in_flight: InFlight | None) -> Settlement | None:
    """How an entry that recovery appends settles our contribution in flight; None if it does not name it."""
    if in_flight is None:
        return None
    ours = in_flight.contribution
    if not any(c.peer == ours.peer and c.phase == ours.phase for c in entry.contributions):
        return None
    is_as_voted = in_flight.voted is not None and entry_hash(in_flight.voted) == entry_hash(entry)
    return Settlement(ours.phase, in_flight.owned if is_as_voted else ())


def dropped_phases(
    me: PeerId, own: Sequence[Entry], branch: Branch, reverted: Set[Digest] = frozenset()
) -> tuple[PhaseId, ...]:
    """Our contributions that a rollback takes out of the chain and the better branch does not have: late contributions,
    to be put back into our error feedback from the payloads that we kept. Not from the first entry of `reverted` on."""
    sound = itertools.takewhile(lambda entry: entry_hash(entry) not in reverted, own)
    return tuple(sorted(_phases(me, sound) - _phases(me, (signed.entry for signed in branch.entries))))


def forgotten_phases(me: PeerId, own: Sequence[Entry], reverted: Set[Digest]) -> tuple[PhaseId, ...]:
    """Our contributions to entries of ours from the first on that was `reverted`: it may be one of them that spoiled
    the model, and those after it have what rounding left of it (R29)."""
    spoiled = itertools.dropwhile(lambda entry: entry_hash(entry) not in reverted, own)
    return tuple(sorted(_phases(me, spoiled)))


def _phases(me: PeerId, entries: Iterable[Entry]) -> set[PhaseId]:
    return {c.phase for entry in entries for c in entry.contributions if c.peer == me}
