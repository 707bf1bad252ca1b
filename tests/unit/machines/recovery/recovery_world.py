"""A site and its sources in memory, around the real recovery machine: who answers what, and what our own site does.

State digests are the hash of all entries before, so that a replay that leaves one out is seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.chain import view_of
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.finality import Place, num_final
from dilocoxd.machines.recovery.machine import RecoveryMachine
from dilocoxd.machines.round.outputs import InFlight, StartRecovery
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.unit.daemon.chain.chain_maker import GENESIS, base_view, chain, signed_by_all

NUM_CHUNKS = 7
MADE_UP = b"made up"
STATE_0 = Digest(hashlib.sha256(b"state 0").digest())


def applied(digest: Digest, signed: SignedEntry) -> Digest:
    """The state after this entry."""
    return Digest(hashlib.sha256(digest + b"".join(signed.entry.result_hashes)).digest())


def grown(
    before: list[SignedEntry], count: int, salt: bytes, *, tokens: int = 10, lies_at: int | None = None
) -> list[SignedEntry]:
    """`before` and `count` more entries; entry `lies_at` is voted for on a state that never was."""
    made, digest = list(before), STATE_0
    for signed in before:
        digest = applied(digest, signed)
    for index in range(len(before), len(before) + count):
        parent = entry_hash(made[-1].entry) if made else GENESIS
        (signed,) = chain(1, start=index, parent=parent, salt=salt, tokens=tokens)
        said = Digest(hashlib.sha256(b"never was").digest()) if index == lies_at else digest
        entry = replace(signed.entry, state_digest=said)
        made.append(signed_by_all(entry))
        digest = applied(digest, made[-1])
    return made


@dataclass
class Donor:
    """One source."""

    log: list[SignedEntry]
    payloads_from: int = 0
    snapshots: tuple[int, ...] = ()
    is_silent: bool = False
    lies_about_chunks: bool = False
    makes_up_snapshots: bool = False
    """Its index is sound in itself, and of another state than it says."""


@dataclass
class World:
    """`answer`: what becomes of a question; by default the truth, after `latency_s`."""

    own: list[SignedEntry]
    donors: dict[str, Donor]
    limits: r.RecoveryLimits = field(default_factory=r.RecoveryLimits)
    can_replay: bool = True
    num_missing: int = 0
    """Payloads below the fork that our disk lacks, where it cannot replay; 0: too many."""
    refuses_rebuild: bool = False
    """Payloads below the fork lead to another state than its first entry was voted on, or to none."""
    is_rebuild: bool = False
    latency_s: Callable[[r.Ask], float] = lambda question: 0.1
    twist: Callable[[r.Ask, r.Answer], r.Answer | None] = lambda question, answer: answer
    in_flight: InFlight | None = None
    bounds: RoundLimits = field(default_factory=RoundLimits)
    """Of the run: what is final (R28)."""
    adopted: Place | None = None
    takes_back: RoundIndex | None = None
    """With this round of our own chain (R29)."""
    reverted: frozenset[Digest] = frozenset()
    present: frozenset[int] = frozenset()
    """Chunks on our disk from an earlier try."""
    patience_s: float | None = None
    """For each branch to be shown (R22.6)."""

    def __post_init__(self) -> None:
        self.log = list(self.own)
        self.aside: list[SignedEntry] = []
        self.digest: Digest | None = self.digest_of(self.log)
        self.now = Monotonic(100.0)
        self.asked: list[r.Ask] = []
        self.orders: list[r.Effect] = []
        self.states: list[str] = []
        self.done: r.Done | None = None
        self.pending: list[tuple[float, int, r.RecoveryEvent]] = []
        self.cancelled: set[int] = set()
        self.chunks: set[int] = set(self.present)
        order = StartRecovery(tuple(map(PeerId, self.donors)), RoundIndex(99), "test", self.is_rebuild, self.in_flight)
        limits = dict.fromkeys(order.peers, self.patience_s) if self.patience_s is not None else {}
        order = replace(order, takes_back=self.takes_back, reverted=self.reverted, patience_s=limits)
        heads = [GENESIS, *(entry_hash(signed.entry) for signed in self.log)]
        self.machine = RecoveryMachine(order, heads, self.digest, self.limits, lambda rank: 1000, self.adopted)

    def digest_of(self, log: list[SignedEntry]) -> Digest:
        digest = STATE_0
        for signed in log:
            digest = applied(digest, signed)
        return digest

    def run(self, events_max: int = 5000) -> r.Done:
        """Until it is over."""
        self._carry_out(self.machine.start(now=self.now))
        for _ in range(events_max):
            if self.done is not None:
                return self.done
            self.machine.check()
            self._next()
        raise AssertionError(f"no end: {self.machine.status}")

    def _next(self) -> None:
        deadline = self.machine.next_deadline()
        self.pending.sort(key=lambda item: item[:2])
        if self.pending and (deadline is None or self.pending[0][0] <= deadline):
            at, _, event = self.pending.pop(0)
            self.now = Monotonic(max(at, self.now))
        else:
            assert deadline is not None, f"R-e: waits for ever: {self.machine.status}"
            self.now, event = Monotonic(max(self.now, deadline)), r.Tick()
        self._carry_out(self.machine.handle(event, now=self.now))

    def _carry_out(self, effects: list[r.Effect]) -> None:
        for effect in effects:
            assert self.done is None, "nothing comes after Done"
            self._one(effect)
            state = self.machine.status.state
            if not self.states or self.states[-1] != state:
                self.states.append(state)

    def _one(self, effect: r.Effect) -> None:
        match effect:
            case r.Done():
                self.done = effect
            case r.Cancel():
                self.cancelled.add(effect.request)
                self.pending = [item for item in self.pending if getattr(item[2], "request", None) != effect.request]
            case r.ForgetOwn():
                self.aside = []
                self.orders.append(effect)
            case r.PauseTrainers() | r.CloseDownload() | r.SourceDropped() | r.FinalKept():
                self.orders.append(effect)
            case r.AskEntries() | r.AskSnapshots() | r.AskOffer() | r.AskChunk() | r.AskPayload():
                self._ask(effect)
            case _:
                self.orders.append(effect)
                self._answer_at(self.now, self._step(effect))

    def _answer_at(self, at: float, event: r.RecoveryEvent) -> None:
        self.pending.append((at, len(self.pending), event))

    def _ask(self, question: r.Ask) -> None:
        self.asked.append(question)
        donor = self.donors[question.peer]
        if donor.is_silent:
            return
        answer = self.twist(question, self.truth(donor, question))
        if answer is not None:
            self._answer_at(self.now + self.latency_s(question), answer)

    def truth(self, donor: Donor, question: r.Ask) -> r.Answer:
        """What an honest source, or a liar about chunks, answers."""
        number = question.request
        match question:
            case r.AskEntries():
                return r.EntriesCame(number, tuple(donor.log[question.first : question.first + 40]))
            case r.AskSnapshots():
                return r.SnapshotsListed(number, donor.snapshots)
            case r.AskOffer() if question.certified_by.round in donor.snapshots:
                key = MADE_UP if donor.makes_up_snapshots else b"key"
                return r.OfferCame(number, r.Offer(question.certified_by.round, key, (1000,) * NUM_CHUNKS))
            case r.AskChunk() if donor.lies_about_chunks:
                return r.AskFailed(number, "wrong hash", is_final=True, is_wrong=True)
            case r.AskChunk():
                return r.ChunkCame(number)
            case r.AskPayload() if question.signed in donor.log[donor.payloads_from :]:
                return r.PayloadCame(number)
            case _:
                return r.AskFailed(number, "not_found", is_final=True)

    def _step(self, step: r.Effect) -> r.StepDone:
        match step:
            case r.Rebuild(has_way_back) if has_way_back and self.refuses_rebuild:
                return r.RebuildRefused("another state")
            case r.Rebuild():
                self.digest = self.digest_of(self.log)
                return r.Rebuilt(self.digest)
            case r.ReadOwn():
                entries = [signed.entry for signed in self.log]
                base = view_of(base_view(), entries[: step.fork], Digest(bytes(32)))
                final = num_final(self.log[step.fork :], base, self.bounds, self.adopted)
                first = step.fork if self.can_replay else max(0, step.fork - self.num_missing)
                missing = tuple(self.log[first : step.fork])
                return r.OwnRead(tuple(entries[step.fork :]), self.can_replay, base, final, missing)
            case r.CheckBranch():
                return r.BranchChecked("")
            case r.RestorePayload():
                return r.PayloadRestored()
            case r.LeaveOwn():
                self.aside, self.log = self.log[step.branch.fork :], self.log[: step.branch.fork]
                return r.OwnLeft()
            case r.OpenDownload():
                return r.DownloadOpened(frozenset(self.chunks))
            case r.FinishDownload():
                return r.DownloadFinished()
            case r.AdoptSnapshot() if step.offer.key == MADE_UP:
                return r.AdoptRefused("not the state that was voted on", is_false=True)
            case r.AdoptSnapshot():
                self.log += step.skipped
                self.digest = Digest(step.certified_by.state_digest)
                return r.Adopted()
            case r.TakeEntry():
                assert self.digest == step.signed.entry.state_digest, "applied to another state than it was voted on"
                self.digest = applied(self.digest, step.signed)
                self.log.append(step.signed)
                return r.EntryTaken(self.digest)
            case r.TurnBack():
                assert self.log[step.fork :] == list(step.taken)
                if not step.is_kept:
                    self.log = [*self.log[: step.fork], *self.aside]
                self.aside = []
                self.digest = self.digest_of(self.log)
                return r.TurnedBack(self.digest)
            case _:
                raise AssertionError(f"not a step: {step}")

    def ordered(self, kind: type) -> list[r.Effect]:
        """Orders of one kind, in order."""
        return [order for order in self.orders if isinstance(order, kind)]

    def questions(self, kind: type) -> list[r.Ask]:
        return [question for question in self.asked if isinstance(question, kind)]
