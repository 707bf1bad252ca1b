"""Where our own chain stands in the course of one recovery, as far as the steps tell that our site has carried out."""

from collections.abc import Iterable, Sequence

from dilocoxd.ids import Digest, PhaseId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.round.inputs import NEWEST_READ
from dilocoxd.machines.round.outputs import InFlight, Settlement
from dilocoxd.wire.entry import Entry, SignedEntry, entry_hash


def compared_rounds(before: Sequence[Digest], now: Sequence[Digest]) -> tuple[int, ...]:
    """Whose votes are compared with those that were heard (R27): the newest entries, and before them the first that is
    another one than before, wherever it is. Only there two branches have one parent, so whoever made a long one alone,
    from a disk that was put back, has contradicted itself nowhere else; and how long a branch may be for which another
    one is left is for the run to say (R28).

    Args:
        before, now: chain heads by height, as they were when the recovery began and as they are.
    """
    height = len(now) - 1
    first = max(0, height - NEWEST_READ)
    both = min(len(before) - 1, height)
    same = next(number for number in range(both, -1, -1) if now[number] == before[number])
    at_fork = (same,) if same < both and same < first else ()
    return (*at_fork, *range(first, height))


class OwnChain:
    """`heads`: chain head at each height, `heads[0]` = genesis; `state_digest`: of the state at the tip, None while no
    state fits the log; `in_flight`: our contribution that no entry of the chain has settled."""

    def __init__(self, heads: Sequence[Digest], state_digest: Digest | None, in_flight: InFlight | None) -> None:
        self.heads = list(heads)
        self.state_digest = state_digest
        self.in_flight = in_flight
        self.settled: PhaseId | None = None
        """The contribution that was in flight, once an entry that we took has settled it."""
        self._first_head = self.heads[-1]

    @property
    def height(self) -> int:
        return len(self.heads) - 1

    @property
    def has_moved(self) -> bool:
        """The tip is another one than when the recovery began."""
        return self.heads[-1] != self._first_head

    def note(self, step: r.Step, done: r.StepDone) -> None:
        """Our site has carried out `step`; one that was refused has changed nothing."""
        match step, done:
            case r.Rebuild(), r.Rebuilt(digest):
                self.state_digest = digest
            case r.LeaveOwn(branch), r.OwnLeft():
                if step.reverted and self.in_flight is not None:
                    self.settled, self.in_flight = self.in_flight.contribution.phase, None
                self._cut(branch.fork)
                self.state_digest = None
            case r.AdoptSnapshot(), r.Adopted():
                self._grow(signed.entry for signed in step.skipped)
                self._settle(step.settle)
                self.state_digest = Digest(step.certified_by.state_digest)
            case r.TakeEntry(SignedEntry(entry)), r.EntryTaken(digest):
                self._grow([entry])
                self._settle(step.settle)
                self.state_digest = digest
            case r.TurnBack(fork), r.TurnedBack(digest):
                if not step.is_kept:
                    self._cut(fork)
                    self._grow(step.own)
                self.state_digest = digest
            case _:
                pass

    def _cut(self, fork: int) -> None:
        del self.heads[fork + 1 :]

    def _grow(self, entries: Iterable[Entry]) -> None:
        self.heads += [entry_hash(entry) for entry in entries]

    def _settle(self, settle: Settlement | None) -> None:
        if settle is not None:
            self.settled, self.in_flight = settle.phase, None
