"""What a simulated peer keeps over a crash, in memory: log, promise, counters, the records of others.

`append` can run into a full disk, or into a crash before, in or after the write. tests/simulation/peer/files.py does
the same on real files with the real store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dilocoxd.ids import Digest, PeerId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.recovery.finality import Place
from dilocoxd.machines.recovery.rollback import Choice, choose_at_start
from dilocoxd.machines.round.outputs import KeptPromise, Promise
from dilocoxd.store.durable import DiskFull
from dilocoxd.wire.entry import SignedEntry, entry_hash, genesis_hash
from dilocoxd.wire.messages import TakeBack
from dilocoxd.wire.records import PeerRecord

if TYPE_CHECKING:
    from tests.simulation.peer.arithmetic import Sums

RUN_ID = RunId("sim-0123456789abcdef")
GENESIS = genesis_hash(RUN_ID, bytes(32))
GENESIS_DIGEST = Digest(hashlib.sha256(b"state 0").digest())
Payload = dict[tuple[int, int], bytes]

PARTICIPATION_ROUNDS = 4
"""`strategy.participation_rounds` of all simulated runs."""
CRASHES = ("before", "torn", "torn_tail", "after")
"""Where in `append` the process dies: nothing written, half of the file, a damaged file, all of it."""


class Crashed(Exception):
    """The process died between two commands, or in a write."""


@dataclass
class Stored:
    """One record of the log."""

    signed: SignedEntry
    payload: Payload


@dataclass
class Disk:
    """Durable state. `None` promise: nothing promised yet."""

    log: list[Stored] = field(default_factory=list)
    promise: Promise | None = None
    promise_payload: Payload = field(default_factory=dict)
    next_phase: int = 0
    incarnation: int = 0
    records: dict[PeerId, PeerRecord] = field(default_factory=dict)
    is_full: bool = False
    aside: list[Stored] = field(default_factory=list)
    """The own branch, while a better one is taken (store/branch_aside.py)."""
    chunks: dict[bytes, set[int]] = field(default_factory=dict)
    """Of snapshots that are being downloaded; kept over restarts."""
    restored: set[Digest] = field(default_factory=set)
    """Entries whose payloads others have given again."""
    adopted: Place | None = None
    """Where the operator wanted to be last (R28)."""
    probation_rounds: int = 0
    """Of the run (M11)."""
    taken_back: tuple[TakeBack, ...] = ()
    """Certificates against entries (R29)."""

    def first_view(self, state_digest: Digest, participation_rounds: int = 0) -> ChainView:
        """View of the empty chain."""
        rounds = (participation_rounds, self.probation_rounds)
        return ChainView(
            RUN_ID, RoundIndex(0), GENESIS, state_digest, participation_rounds=rounds[0], probation_rounds=rounds[1]
        )

    def open(self) -> Choice | None:
        """A process starts: what is here now is what the last one left; the better of two branches stays."""
        own = [stored.signed.entry for stored in self.aside]
        fork = own[0].round if own else 0
        heads = [GENESIS, *(entry_hash(stored.signed.entry) for stored in self.log)]
        below = heads[fork] if fork < len(heads) else None
        reverted = frozenset(Digest(message.entry_hash) for message in self.taken_back)
        taken = [stored.signed for stored in self.log[fork:]]
        choice = choose_at_start(own, below, taken, None, self.adopted, reverted)
        if choice is not None and choice.goes_back:
            self.roll_back(fork)
            self.put_back()
        self.aside = []
        return choice

    def set_aside(self, height: int) -> None:
        """Leave the branch from `height` on, but keep it."""
        self.aside = self.log[height:]
        self.roll_back(height)

    def put_back(self) -> None:
        """The branch that was set aside is in the log again."""
        self.log = [*self.log, *self.aside]

    def clear_aside(self) -> None:
        """The better branch is complete."""
        self.aside = []

    def close(self) -> None:
        """The end of the schedule."""

    def append(self, stored: Stored, crash: str = "") -> None:
        """Add the next entry. Raises DiskFull; Crashed if `crash` says where in the write."""
        if self.is_full:
            raise DiskFull("no space left")
        if crash in ("", "after"):
            self.log.append(stored)
        if crash:
            raise Crashed

    def roll_back(self, height: int) -> None:
        self.log = self.log[:height]

    def lose_log(self) -> None:
        """The operator moved the log directory away, as a StoreError advises."""
        self.log = []

    def save_promise(self, promise: Promise, payload: Payload) -> None:
        """Raises DiskFull; the promise before it then stands."""
        if self.is_full:
            raise DiskFull("no space left")
        self.promise, self.promise_payload = promise, payload

    def chain(self, sums: Sums) -> ChainView:
        """Replay: genesis, then every entry applied."""
        view = self.first_view(sums.genesis(), PARTICIPATION_ROUNDS)
        for stored in self.log:
            assert stored.signed.entry.state_digest == view.state_digest, "the log cannot be replayed"
            view = view.extended(stored.signed.entry, sums.applied(view.state_digest, stored.payload))
        return view

    def kept(self) -> KeptPromise | None:
        if self.promise is None:
            return None
        held = self.promise.entry is not None and hashes(self.promise_payload) == self.promise.entry.result_hashes
        return KeptPromise(self.promise, results_held=held)


def sha(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).digest())


def hashes(payload: Payload) -> tuple[bytes, ...]:
    return tuple(sha(data) for _, data in sorted(payload.items()))
