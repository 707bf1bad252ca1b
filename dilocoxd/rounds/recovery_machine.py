"""Brings a site to the chain of others, step by step: the sans-io machine of one recovery.

Compares the chains of the named peers one after the other; takes the first that is better than ours: by entries alone,
or on from a snapshot, after leaving our own branch at the fork if there is one. A branch that turns out to be false, or
that nobody can give, is left again for our own. Every wait has a reason and a deadline, or is a step of our own site
under way. State table: protocol/09-catching-up.md. What is acceptable and better: rounds/recovery.py.
"""

from collections.abc import Callable, Sequence

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, Monotonic, PeerId, PhaseId
from dilocoxd.rounds import recovery_events as r
from dilocoxd.rounds.branch_search import BranchSearch
from dilocoxd.rounds.commands import InFlight, StartRecovery
from dilocoxd.rounds.recovery import Branch, is_better, settlement
from dilocoxd.rounds.requests import Desk
from dilocoxd.rounds.snapshot_hunt import SnapshotHunt
from dilocoxd.rounds.taking import Taking, Troubles
from dilocoxd.wire.entry import SignedEntry, entry_hash

ANSWER_BYTES = 8 << 20
"""Largest answer to a question about entries."""


class RecoveryMachine:
    """One ordered recovery. `heads`: chain head at each height of ours; `payload_bytes`: by low rank."""

    def __init__(
        self,
        order: StartRecovery,
        heads: Sequence[Digest],
        state_digest: Digest | None,
        limits: r.RecoveryLimits,
        payload_bytes: Callable[[int], int] = lambda lowrank_r: 0,
    ) -> None:
        self._order = order
        self._heads = list(heads)
        self._old_head = heads[-1]
        self._digest = state_digest
        self._limits = limits
        self._payload_bytes = payload_bytes
        self._desk = Desk()
        self._to_compare = list(dict.fromkeys(order.peers))
        self._peer: PeerId | None = None
        self._search: BranchSearch | None = None
        self._branch = Branch(0, ())
        self._read: r.OwnRead | None = None
        self._taking: Taking | None = None
        self._hunt: SnapshotHunt | None = None
        self._num_compared = 0
        self._troubles = Troubles()
        self._settled: PhaseId | None = None
        self._state = "comparing"
        self._text = ""
        self._is_step_open = False

    # --- outside

    @property
    def status(self) -> r.RecoveryStatus:
        hunt = self._hunt
        state, text = (hunt.state, hunt.text) if hunt is not None else (self._state, self._text)
        asked = list(self._desk.open.values())
        patience_s = asked[-1].deadline - asked[-1].since if asked else None
        sources = tuple(dict.fromkeys(question.peer for question in asked))
        problems = tuple(self._troubles.dropped + self._troubles.reasons)
        return r.RecoveryStatus(state, text, self.next_deadline(), patience_s, sources, problems)

    @property
    def is_over(self) -> bool:
        return self._state == "done"

    @property
    def _flying(self) -> InFlight | None:
        """Our contribution in flight, until an entry that we took has settled it."""
        return self._order.in_flight if self._settled is None else None

    def next_deadline(self) -> Monotonic | None:
        """When to send a Tick unless something comes before."""
        pool = self._hunt.pool if self._hunt is not None else None
        deadlines = [self._desk.next_deadline(), pool.next_deadline() if pool is not None else None]
        return min((at for at in deadlines if at is not None), default=None)

    def start(self, *, now: Monotonic) -> list[r.Effect]:
        """The first effects."""
        self._desk.now = now
        if self._order.is_rebuild:
            self._desk.emit(r.PauseTrainers("the state is rebuilt"))
            self._step("rebuilding", "our state, from our own disk", r.Rebuild())
        else:
            self._next_peer()
        return self._taken()

    def handle(self, event: r.RecoveryEvent, *, now: Monotonic) -> list[r.Effect]:
        """One event. Never raises for what peers say."""
        self._desk.now = now
        if self.is_over:
            return []
        if isinstance(event, r.Tick):
            for request in self._desk.expired():
                asked = self._desk.open.get(request)
                if asked is None:
                    continue  # the one before ended it
                self._desk.emit(r.Cancel(request))
                seconds = now - asked.since
                self._on_answer(r.AskFailed(request, f"no answer about {asked.what} for {seconds:.0f} s"))
            if self._hunt is not None:
                self._hunt.handle(None, event)
                self._look_at_hunt()
        elif isinstance(event, r.Answer):
            self._on_answer(event)
        elif self._is_step_open:
            self._is_step_open = False
            self._on_step(event)
        return self._taken()

    def check(self) -> None:
        """Invariants, for tests and simulation: rule R-e, and never two steps at a time."""
        is_waiting = bool(self._desk.open) or self._is_step_open or self.is_over
        assert is_waiting, f"recovery in state {self.status.state} waits for nothing"
        assert self.is_over or self.status.waiting_for, "recovery waits without a reason"
        assert not (self.is_over and self._desk.open), "recovery is over and still waits"
        assert self.status.state in r.STATES

    def _taken(self) -> list[r.Effect]:
        effects = self._desk.taken()
        if any(isinstance(effect, r.Step) for effect in effects):
            assert not self._is_step_open, "a step before the last one was answered"
            self._is_step_open = True
        return effects

    # --- comparing heads

    def _next_peer(self) -> None:
        self._taking, self._hunt, self._search = None, None, None
        self._desk.cancel_all()
        # A head that has moved ends it, also when only a part of a chain could be had: the next recovery asks for more.
        if self._heads[-1] != self._old_head or not self._to_compare:
            self._finish()
            return
        self._peer = self._to_compare.pop(0)
        self._search = BranchSearch(tuple(self._heads), self._limits.entries_max)
        self._ask_entries(self._search, self._peer)

    def _ask_entries(self, search: BranchSearch, peer: PeerId) -> None:
        self._wait("comparing", f"the chain of {peer} ({self._order.reason})")
        first = search.next_from
        asked = self._desk.asked(peer, "its entries", first, self._limits.patience_s(ANSWER_BYTES))
        self._desk.ask(asked, lambda request: r.AskEntries(request, peer, first))

    def _on_entries(self, search: BranchSearch, peer: PeerId, entries: tuple[SignedEntry, ...]) -> None:
        try:
            branch = search.take(entries)
        except WireError as error:
            self._fail_peer(str(error), is_false=True)
            return
        if branch is None:
            self._ask_entries(search, peer)
        elif branch.entries:
            self._branch, self._search = branch, None
            self._step("weighing", f"the branch of {peer} to be weighed", r.ReadOwn(branch.fork))
        else:
            self._compared()

    def _weigh(self, read: r.OwnRead) -> None:
        """Fork choice comes before the votes are checked: most branches are not better."""
        if not is_better(self._branch, read.entries):
            self._compared()
            return
        self._read = read
        text = f"the votes of {len(self._branch.entries)} entries of {self._peer} to be checked"
        self._step("weighing", text, r.CheckBranch(self._branch, read.base))

    def _compared(self) -> None:
        self._num_compared += 1
        self._next_peer()

    def _fail_peer(self, reason: str, *, is_false: bool) -> None:
        self._troubles.note(self._peer, reason, is_false=is_false)
        self._next_peer()

    def _finish(self) -> None:
        self._wait("done", "")
        is_moved = self._heads[-1] != self._old_head
        failure = "" if self._num_compared or is_moved else "; ".join(self._troubles.reasons) or "no peer to ask"
        troubles, unasked = self._troubles, tuple(self._to_compare)
        self._desk.emit(r.Done(failure, self._settled, tuple(troubles.refuted), tuple(troubles.broken), unasked))

    # --- choosing: entries alone, a snapshot and entries, or nothing

    def _choose(self, read: r.OwnRead) -> None:
        branch, peer = self._branch, self._peer
        assert peer is not None
        if read.entries or len(branch.entries) > 1:
            self._desk.emit(r.PauseTrainers("catching up"))
        donors = [peer, *(other for other in dict.fromkeys(self._order.peers) if other != peer)]
        can_replay = not read.entries or read.can_replay
        self._taking = Taking(branch, read.entries, donors, can_replay, list(branch.entries))
        if not can_replay or len(branch.entries) > self._limits.replay_max:
            self._start_hunt(self._taking)
        else:
            self._begin(self._taking)

    def _start_hunt(self, taking: Taking) -> None:
        donors = [peer for peer in taking.donors if peer not in self._troubles.liars]
        self._hunt = SnapshotHunt(self._desk, taking.left, donors, self._limits)
        self._look_at_hunt()

    def _look_at_hunt(self) -> None:
        hunt, taking = self._hunt, self._taking
        if hunt is None or taking is None or not hunt.is_over:
            return
        self._hunt = None
        taking.offer = hunt.offer
        if hunt.problem:
            self._abort(hunt.problem)
        elif hunt.offer is None and taking.is_begun:
            self._abort("; ".join(taking.reasons))
        elif hunt.offer is None and not taking.can_replay:
            self._abort(
                f"the state at the fork (height {taking.branch.fork}) cannot be made from our disk any more, and nobody"
                " offers a snapshot of the better chain"
            )
        elif taking.is_begun:
            self._enter(taking)
        else:
            self._begin(taking)

    # --- leaving our branch, adopting, replaying

    def _begin(self, taking: Taking) -> None:
        taking.is_begun = True
        if taking.own:
            text = f"{len(taking.own)} entries of ours to be left (fork at height {taking.branch.fork})"
            self._step("leaving", text, r.LeaveOwn(taking.branch, taking.own, self._flying))
        else:
            self._enter(taking)

    def _on_left(self, taking: Taking) -> None:
        del self._heads[taking.branch.fork + 1 :]
        self._digest = None
        if taking.can_replay:
            self._step("rebuilding", f"the state at the fork (height {taking.branch.fork})", r.Rebuild())
        else:
            self._enter(taking)

    def _enter(self, taking: Taking) -> None:
        if taking.offer is None:
            self._replay(taking)
            return
        skipped = taking.offer.round - taking.left[0].entry.round
        text = f"snapshot {taking.offer.round} to be loaded"
        certified_by, passed = taking.left[skipped].entry, tuple(taking.left[:skipped])
        taking.settle = next(filter(None, (settlement(signed.entry, self._flying) for signed in passed)), None)
        step = r.AdoptSnapshot(taking.offer, certified_by, passed, taking.settle, self._flying)
        self._step("adopting", text, step)

    def _on_adopted(self, taking: Taking) -> None:
        assert taking.offer is not None
        skipped = taking.offer.round - taking.left[0].entry.round
        self._heads += [entry_hash(signed.entry) for signed in taking.left[:skipped]]
        taking.left = taking.left[skipped:]
        taking.offer = None
        self._settled = taking.settle.phase if taking.settle is not None else self._settled
        self._digest = Digest(taking.left[0].entry.state_digest)
        self._replay(taking)

    def _replay(self, taking: Taking) -> None:
        """The next entry; the branch is complete when there is none."""
        if not taking.left:
            if taking.own:
                self._desk.emit(r.ForgetOwn())
            self._compared()
            return
        entry = taking.left[0].entry
        if self._digest != entry.state_digest:
            self._abort(f"entry {entry.round} was voted for on another state than its chain leads to", is_false=True)
            return
        taking.to_ask, taking.reasons = list(taking.donors), []
        self._ask_payload(taking)

    def _ask_payload(self, taking: Taking) -> None:
        signed = taking.left[0]
        index = int(signed.entry.round)
        if not taking.to_ask:
            taking.reasons = [f"payload of entry {index}: {'; '.join(taking.reasons)}"]
            self._start_hunt(taking)
            return
        peer = taking.to_ask.pop(0)
        self._wait("fetching_payload", f"the payload of entry {index}")
        patience_s = self._limits.patience_s(self._payload_bytes(signed.entry.lowrank_r))
        asked = self._desk.asked(peer, f"payload {index}", index, patience_s)
        self._desk.ask(asked, lambda request: r.AskPayload(request, peer, signed))

    def _payload_failed(self, taking: Taking, peer: PeerId, reason: str) -> None:
        # Not held against the donor (it may be on another chain by now), but from now on it is asked last.
        taking.reasons = [*(taking.reasons), f"{peer}: {reason}"]
        taking.donors = [*(donor for donor in taking.donors if donor != peer), peer]
        self._ask_payload(taking)

    def _take(self, taking: Taking, request: int) -> None:
        signed = taking.left[0]
        taking.settle = settlement(signed.entry, self._flying)
        text = f"entry {signed.entry.round} to be applied"
        self._step("applying", text, r.TakeEntry(signed, request, taking.settle, self._flying))

    def _on_taken(self, taking: Taking, digest: Digest) -> None:
        signed = taking.left.pop(0)
        self._settled = taking.settle.phase if taking.settle is not None else self._settled
        self._heads.append(entry_hash(signed.entry))
        self._digest = digest
        self._replay(taking)

    # --- turning back

    def _abort(self, reason: str, *, is_false: bool = False) -> None:
        """The branch is false or cannot be had."""
        taking = self._taking
        assert taking is not None
        self._desk.cancel_all()
        self._troubles.note(self._peer, reason, is_false=is_false)
        if not taking.is_begun or not taking.own:
            self._next_peer()
            return
        fork = taking.branch.fork
        taken = taking.branch.entries[: len(self._heads) - 1 - fork]
        is_kept = is_better(Branch(fork, taken), taking.own)
        text = "the part of the better branch that came" if is_kept else "our own branch again"
        self._step("turning_back", text, r.TurnBack(fork, taken, taking.own, is_kept, self._flying))
        if not is_kept:
            self._heads = [*self._heads[: fork + 1], *(entry_hash(entry) for entry in taking.own)]

    # --- events

    def _on_answer(self, event: r.Answer) -> None:
        asked = self._desk.answered(event.request)
        if asked is None:
            return
        is_chunk = self._hunt is not None and self._hunt.pool is not None
        self._troubles.hear(asked.peer, event, is_chunk=is_chunk)
        taking = self._taking
        if self._hunt is not None:
            self._hunt.handle(asked, event)
            self._look_at_hunt()
        elif self._search is not None and self._peer is not None:
            if isinstance(event, r.EntriesCame):
                self._on_entries(self._search, self._peer, event.entries)
            elif isinstance(event, r.AskFailed):
                self._fail_peer(event.reason, is_false=event.is_wrong)
        elif taking is not None and isinstance(event, r.PayloadCame):
            self._take(taking, event.request)
        elif taking is not None and isinstance(event, r.AskFailed):
            self._payload_failed(taking, asked.peer, event.reason)

    def _on_step(self, event: r.StepDone) -> None:
        taking = self._taking
        match event:
            case r.OwnRead():
                self._weigh(event)
            case r.BranchChecked():
                assert self._read is not None
                self._fail_peer(event.problem, is_false=True) if event.problem else self._choose(self._read)
            case r.DownloadOpened() | r.DownloadFinished():
                assert self._hunt is not None
                self._hunt.handle(None, event)
                self._look_at_hunt()
            case r.Rebuilt():
                self._digest = event.state_digest
                self._enter(taking) if taking is not None else self._next_peer()
            case r.TurnedBack():
                self._digest = event.state_digest
                self._next_peer()
            case _:
                assert taking is not None
                self._on_own_step(event, taking)

    def _on_own_step(self, event: r.StepDone, taking: Taking) -> None:
        match event:
            case r.OwnLeft():
                self._on_left(taking)
            case r.Adopted():
                self._on_adopted(taking)
            case r.EntryTaken():
                self._on_taken(taking, event.state_digest)
            case r.AdoptRefused() | r.EntryRefused():
                self._abort(event.reason, is_false=isinstance(event, r.EntryRefused))
            case _:
                pass

    def _wait(self, state: str, text: str) -> None:
        self._state, self._text = state, text

    def _step(self, state: str, text: str, step: r.Step) -> None:
        self._wait(state, text)
        self._desk.emit(step)
