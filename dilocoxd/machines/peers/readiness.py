"""What each peer said at one height: its Ready, the attempts that it claims, gave up or left. Ends with the height.

Decides which attempt to be in, and who takes part in it. Source: protocol/06-rounds.md (R1, R5, R12).
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from dilocoxd.ids import Attempt, PeerId
from dilocoxd.machines.peers.record import PEERS_MAX
from dilocoxd.wire.messages import Ready

ABANDONED_MAX: Final = 3
"""Who gives up this many attempts of one round is left out of the rest of it."""
JUMPS_END: Final = Attempt(2**30)
"""Above it nobody is believed who is far beyond us, whoever says so too (R5.6). Half of all attempts that a message can
name are left: behind the last one there is none to go to, also after a restart, for the promise of it is on disk."""
WITNESSES_MIN: Final = 2
WITNESSES_OF: Final = 3
"""Those who raise attempts too often are followed where so many are as far: a third of all that live, two at least."""


@dataclass(slots=True)
class Word:
    """What one peer said at this height."""

    ready: Ready | None = None
    """Its newest, merged with those before it; None: it said none, or stands elsewhere since."""
    claimed: Attempt | None = None
    """The attempt that it said to be in last, believed or not."""
    left: Attempt | None = None
    """The attempt that it left; over with its next Ready."""
    has_false_alarm: bool = False
    """Said alone that a round goes on without us, and nothing came of it."""
    abandoned: set[Attempt] = field(default_factory=set)
    """Attempts that it was the first to give up."""


class Readiness:
    """The words of everybody, ourselves included, at one height."""

    def __init__(self, words: Mapping[PeerId, Word] | None = None) -> None:
        self._words: Final[dict[PeerId, Word]] = dict(words or {})
        self._readies: dict[PeerId, Ready] | None = None
        """What `readies` answers; None after a change of one."""

    # --- what enters

    def say(self, peer: PeerId, ready: Ready) -> Ready | None:
        """Merge a Ready for our height and head: the latest attempt counts, and within it what says more.

        Returns what counts now; None if there is no room for the peer."""
        word = self._of(peer)
        if word is None:
            return None
        word.ready = ready if word.ready is None else merged(word.ready, ready)
        self._readies = None
        word.left = None
        return word.ready

    def claim(self, peer: PeerId, attempt: Attempt) -> None:
        """The peer says in which attempt it is, believed or not."""
        if (word := self._of(peer)) is not None:
            word.claimed = attempt

    def stands_elsewhere(self, peer: PeerId) -> None:
        """Its Ready is of another tip: what it said here counts no more."""
        if (word := self._words.get(peer)) is not None:
            word.ready = None
            self._readies = None

    def gave_up(self, peer: PeerId, attempt: Attempt) -> None:
        """The peer was the first to leave this attempt. Who says no Ready here may be on another branch: what it gave
        up there does not count, but nobody need wait for it here."""
        word = self._of(peer)
        if word is None:
            return
        word.left = attempt
        if word.ready is not None and len(word.abandoned) < ABANDONED_MAX:
            word.abandoned.add(attempt)

    def left_us_out_in_vain(self, peer: PeerId) -> None:
        """The peer alone said that a round goes on without us, and we have waited it out."""
        if (word := self._of(peer)) is not None:
            word.has_false_alarm = True

    def _of(self, peer: PeerId) -> Word | None:
        word = self._words.get(peer)
        if word is None and len(self._words) < PEERS_MAX:
            word = self._words[peer] = Word()
        return word

    # --- what is asked

    def ready(self, peer: PeerId) -> Ready | None:
        word = self._words.get(peer)
        return None if word is None else word.ready

    def readies(self) -> Mapping[PeerId, Ready]:
        """Of all that stand where we stand, whatever their attempt."""
        if self._readies is None:
            self._readies = {peer: word.ready for peer, word in self._words.items() if word.ready is not None}
        return self._readies

    def left(self, peer: PeerId) -> Attempt | None:
        """The attempt that the peer left and has not come back from."""
        word = self._words.get(peer)
        return None if word is None else word.left

    def is_in(self, peer: PeerId, attempt: Attempt) -> bool:
        """Whether this peer takes part in the attempt, as far as we know."""
        word = self._words.get(peer)
        return word is not None and word.ready is not None and word.ready.attempt == attempt != word.left

    def has_offered(self, peer: PeerId) -> bool:
        ready = self.ready(peer)
        return ready is not None and ready.contribution is not None

    def is_false_alarm(self, peer: PeerId) -> bool:
        """Whether a proposal of it that leaves us out is not believed any more (R8)."""
        word = self._words.get(peer)
        return word is not None and word.has_false_alarm

    def gives_up_often(self, peer: PeerId) -> bool:
        word = self._words.get(peer)
        return word is not None and len(word.abandoned) >= ABANDONED_MAX

    def known_attempt(self, without: PeerId, own: Attempt) -> Attempt:
        """The latest attempt that anybody else says to be in, believed or not."""
        claimed = [w.claimed for peer, w in self._words.items() if peer != without and w.claimed is not None]
        return max([own, *claimed])

    def followed_attempt(self, without: PeerId, own: Attempt, suspected: Set[PeerId]) -> Attempt:
        """The latest attempt of anybody else who is believed and followed: others are no company (R5.3)."""
        others = (w.ready.attempt for p, w in self._words.items() if w.ready and p != without and p not in suspected)
        return max([own, *others])

    def jump_problem(
        self, peer: PeerId, attempt: Attempt, own: Attempt, jump_max: int, *, is_alone: bool = False
    ) -> str:
        """Why the peer cannot be in this attempt: it is too far beyond all that are known, unless nobody else is there
        (`is_alone`, R5.2), or where no round comes (R5.6). Empty if it can."""
        if attempt > max(JUMPS_END, own + jump_max):
            return f"attempt {attempt}, and we are in {own}"
        known = self.known_attempt(peer, own)
        is_far = attempt > known + jump_max and not is_alone
        return f"attempt {attempt}, nobody is beyond {known}" if is_far else ""

    def is_further(self, peer: PeerId, attempt: Attempt, known: Attempt) -> bool:
        """Whether the peer goes further than all others that are followed (`known`), and than it said before."""
        word = self._words.get(peer)
        before = known if word is None or word.claimed is None else word.claimed
        return attempt > max(known, before)

    def latest_attempt(self, live: Set[PeerId], own: Attempt, suspected: Set[PeerId]) -> Attempt:
        """The attempt to be in: the latest of a live peer; of those who raise too often, the latest in which enough of
        them are. `live`: ourselves included."""
        latest, doubtful = own, []
        for peer, word in self._words.items():
            if word.ready is None or word.ready.attempt <= latest or peer not in live:
                continue
            if peer in suspected:
                doubtful.append(word.ready.attempt)
            else:
                latest = word.ready.attempt
        needed = max(WITNESSES_MIN, -(-len(live) // WITNESSES_OF))
        return max(latest, sorted(doubtful)[-needed]) if len(doubtful) >= needed else latest


def merged(known: Ready, newer: Ready) -> Ready:
    """One Ready out of two of the same peer, round and head, in whatever order they came."""
    if newer.attempt != known.attempt:
        return newer if newer.attempt > known.attempt else known
    contribution, offer = newer.contribution, newer.offer
    if contribution is None or (known.contribution is not None and known.contribution.phase > contribution.phase):
        contribution, offer = known.contribution, known.offer
    lock = newer.lock
    if lock is None or (known.lock is not None and known.lock.attempt > lock.attempt):
        lock = known.lock
    if contribution is newer.contribution and lock is newer.lock:
        return newer
    return replace(newer, contribution=contribution, offer=offer, lock=lock)
