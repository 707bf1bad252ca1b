"""Compares one peer's chain with ours: finds where they part, weighs what is behind it, has its votes checked. And
whose turn it is.

What is acceptable and better: machines/recovery/branch.py. Source: protocol/09-catching-up.md L2, L3, R19 to R22.
"""

from collections.abc import Sequence

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, is_better
from dilocoxd.machines.recovery.branch_search import BranchSearch
from dilocoxd.machines.recovery.finality import Place, leads_to
from dilocoxd.machines.recovery.outcomes import UNNUMBERED, Asking, Better, Failed, Kept, NotBetter, Outcome, Question
from dilocoxd.wire.entry import entry_hash

ANSWER_BYTES = 8 << 20
"""Largest answer to a question about entries."""
ASIDE_MAX = 8
"""Comparisons that are kept while others are asked: what came of each takes memory."""


class Comparison:
    """One peer. `heads`: chain head at each height of ours; `adopted`: a place that the operator wants to be at and
    that our chain lacks; `reverted`: entries that nobody takes (R29); `patience_s`: so long its branch may take while
    it is asked, None: as long as it likes (R22.6)."""

    def __init__(
        self,
        peer: PeerId,
        heads: Sequence[Digest],
        entries_max: int,
        adopted: Place | None = None,
        reverted: frozenset[Digest] = frozenset(),
        patience_s: float | None = None,
    ) -> None:
        self.peer = peer
        self.asked_since = Monotonic(0.0)
        self.until: Monotonic | None = None
        """While it is asked: its branch must be here by then; None: whenever."""
        self._left_s = patience_s
        """Of its time, when it was last begun."""
        self._adopted = adopted
        self._reverted = reverted
        self._search = BranchSearch(tuple(heads), entries_max)
        self._branch = Branch(0, ())
        self._read: r.OwnRead | None = None

    def start(self, *, now: Monotonic) -> Asking:
        """It is asked from now on, for the first time or again; the next question about its entries."""
        self.asked_since = now
        self.until = Monotonic(now + self._left_s) if self._left_s is not None else None
        return self._ask()

    def put_aside(self, *, now: Monotonic) -> None:
        """Others are asked meanwhile: that is not its time."""
        self._left_s = self.until - now if self.until is not None else None

    def stood_still(self, seconds: float) -> None:
        """We were not running (R18)."""
        self.asked_since = Monotonic(self.asked_since + seconds)
        self.until = Monotonic(self.until + seconds) if self.until is not None else None

    def _ask(self) -> Asking:
        return Asking((Question(r.AskEntries(UNNUMBERED, self.peer, self._search.next_from), ANSWER_BYTES),))

    def on_answer(self, event: r.Answer) -> Outcome:
        """The answer to the question under way."""
        if isinstance(event, r.AskFailed):
            return Failed(event.reason, event.is_wrong)
        assert isinstance(event, r.EntriesCame)
        try:
            branch = self._search.take(event.entries)
        except WireError as error:
            return Failed(str(error), is_false=True)
        if branch is None:
            return self._ask()
        self._branch = branch
        return r.ReadOwn(branch.fork) if branch.entries else NotBetter()

    def on_step(self, done: r.StepDone) -> Outcome:
        """Fork choice comes before the votes are checked: most branches are not better. What we are kept from by final
        entries is checked too: nobody is alarmed by entries that nobody voted for."""
        branch = self._branch
        is_adopted = self._adopted is not None and leads_to(branch.entries, self._adopted)
        is_adopted = is_adopted and self._reverted.isdisjoint(entry_hash(signed.entry) for signed in branch.entries)
        if isinstance(done, r.OwnRead):
            self._read = done
            is_wanted = is_adopted or is_better(branch, done.entries, self._reverted)
            return r.CheckBranch(branch, done.base, is_adopted) if is_wanted else NotBetter()
        assert isinstance(done, r.BranchChecked) and self._read is not None
        if done.problem:
            return Failed(done.problem, is_false=True)
        own, hashes = self._read.entries, [entry_hash(entry) for entry in self._read.entries]
        reverted = self._reverted.intersection(hashes)
        # Only an entry that was taken back and what follows it is left although it is final, nothing below it (R28.4).
        num_kept = min(self._read.num_final, *map(hashes.index, reverted), len(own))
        if num_kept and not is_adopted:
            return Kept(r.FinalKept(self.peer, branch, own, num_kept))
        adopted = self._adopted if is_adopted else None
        can_replay = not own or self._read.can_replay
        return Better(self.peer, branch, own, can_replay, adopted, reverted, self._read.missing)


class ToCompare:
    """Whose chains are still to be compared: those of the order, then those who were added (R22.7), and behind them,
    with what came so far, those that give few entries at a time, each time late."""

    def __init__(self, peers: Sequence[PeerId]) -> None:
        self.donors = tuple(dict.fromkeys(peers))
        """All of them, also those that were compared: who may have what a branch needs."""
        self._left: list[PeerId | Comparison] = [*self.donors]
        self._added: set[PeerId] = set()

    def add(self, peers: Sequence[PeerId]) -> list[PeerId]:
        """Returns those who are new."""
        new = [peer for peer in dict.fromkeys(peers) if peer not in self.donors]
        self.donors += tuple(new)
        self._added.update(new)
        behind = next((at for at, one in enumerate(self._left) if isinstance(one, Comparison)), len(self._left))
        self._left[behind:behind] = new
        return new

    def put_aside(self, part: Comparison, *, now: Monotonic) -> None:
        """It gives few entries at a time, and late or for long. Beyond ASIDE_MAX it will begin anew."""
        part.put_aside(now=now)
        num_aside = sum(isinstance(one, Comparison) for one in self._left)
        self._left.append(part if num_aside < ASIDE_MAX else part.peer)

    def pop(self) -> PeerId | Comparison:
        """Whose turn it is; there must be one."""
        return self._left.pop(0)

    @property
    def added(self) -> tuple[PeerId, ...]:
        """Those of `donors` whom the order did not name."""
        return tuple(peer for peer in self.donors if peer in self._added)

    @property
    def left(self) -> tuple[PeerId, ...]:
        """Whose chains are not compared yet, or not to their end."""
        return tuple(one.peer if isinstance(one, Comparison) else one for one in self._left)

    @property
    def has_unasked(self) -> bool:
        """Somebody waits that was not asked yet."""
        return any(not isinstance(one, Comparison) for one in self._left)

    @property
    def is_over(self) -> bool:
        """Nobody of the order is left: whoever was added would else keep it going as long as some come."""
        return self._added.issuperset(self.left)
