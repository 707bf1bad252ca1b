"""Brings a site to the chain of others, step by step: the sans-io machine of one recovery.

Compares the chains of the named peers, and of those who are added, one after the other; takes the first that is better
than ours: by entries alone, or on from a snapshot, after leaving our own branch at the fork if there is one. A branch
that turns out to be false, or that nobody can give, is left again for our own. Every wait has a reason and a deadline,
or is a step of our own site under way.

The machine holds one part at a time, a `Comparison` or a `BranchProgress`, built when it begins and dropped when it
ends. Parts return what they found (outcomes.py); only here it becomes questions and steps, and each leads to the next
state by the table of states.py. Source: protocol/09-catching-up.md.
"""

from collections.abc import Callable, Sequence

from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.comparison import Comparison, ToCompare
from dilocoxd.machines.recovery.finality import Place
from dilocoxd.machines.recovery.outcomes import Asking, Better, Complete, Failed, Kept, NotBetter, Outcome, Question
from dilocoxd.machines.recovery.own_chain import OwnChain
from dilocoxd.machines.recovery.progress import BranchProgress, Sources, donors_of
from dilocoxd.machines.recovery.questions import Asked, OpenQuestions
from dilocoxd.machines.recovery.source_faults import SourceFaults
from dilocoxd.machines.recovery.states import DONE, START, after
from dilocoxd.machines.recovery.taking_back import TakingBack
from dilocoxd.machines.recovery.wording import sentence
from dilocoxd.machines.round.outputs import StartRecovery

FEW_ENTRIES = 16
"""In one answer: who takes half of `answer_timeout_s` for fewer is asked for more once the others were compared. It may
be a liar that keeps us from them with one entry at a time; a long chain comes with more, a short one soon."""

OVERDUE = Failed("its branch does not come to an end, and most sites stand where we stand", is_false=True)
"""R22.6."""


class RecoveryMachine:
    """One ordered recovery. `heads`: chain head at each height of ours; `payload_bytes`: by low rank; `adopted`: where
    the operator wants to be (R28)."""

    def __init__(
        self,
        order: StartRecovery,
        heads: Sequence[Digest],
        state_digest: Digest | None,
        limits: r.RecoveryLimits,
        payload_bytes: Callable[[int], int] = lambda lowrank_r: 0,
        adopted: Place | None = None,
    ) -> None:
        self._order = order
        self._limits = limits
        self._payload_bytes = payload_bytes
        self._adopted = adopted
        self._chain = OwnChain(heads, state_digest, order.in_flight)
        self._questions = OpenQuestions()
        self._faults = SourceFaults()
        self._to_compare = ToCompare(order.peers)
        self._num_compared = 0
        self._part: Comparison | BranchProgress | TakingBack | None = None
        self._state = START
        self._wanted: r.Ask | r.Step | r.Done | None = None
        """What led to the present state."""
        self._step: r.Step | None = None
        """Under way at our own site."""
        self._now = Monotonic(0.0)
        self._out: list[r.Effect] = []

    # --- outside

    @property
    def status(self) -> r.RecoveryStatus:
        asked = list(self._questions.open.values())
        patience_s = asked[-1].deadline - asked[-1].since if asked else None
        sources = tuple(dict.fromkeys(question.peer for question in asked))
        problems = self._faults.problems
        late = tuple(self._faults.late.items())
        return r.RecoveryStatus(
            self._state, self._waiting_for, self.next_deadline(), patience_s, sources, problems, late
        )

    @property
    def is_over(self) -> bool:
        return self._state == DONE

    @property
    def _waiting_for(self) -> str:
        part = self._part
        if isinstance(part, BranchProgress) and part.search_text:
            return part.search_text
        fork = part.fork if isinstance(part, BranchProgress | TakingBack) else None
        return sentence(self._wanted, self._order.reason, part.peer if part is not None else None, fork)

    def next_deadline(self) -> Monotonic | None:
        """When to send a Tick unless something comes before."""
        part = self._part
        late_at = part.next_deadline() if isinstance(part, BranchProgress) else None
        over_at = part.until if isinstance(part, Comparison) and self._step is None else None
        return min((at for at in (self._questions.next_deadline(), late_at, over_at) if at is not None), default=None)

    def start(self, *, now: Monotonic) -> list[r.Effect]:
        """The first effects."""
        self._now = now
        if self._order.is_rebuild:
            self._out.append(r.PauseTrainers("the state is rebuilt"))
            self._enact(r.Rebuild())
        elif self._order.takes_back is not None:
            self._out.append(r.PauseTrainers(self._order.reason))
            back = TakingBack(self._order.takes_back, self._chain, self._order.reverted)
            self._part = back
            self._enact(back.start())
        else:
            self._next_peer()
        return self._taken()

    def extend(self, peers: Sequence[PeerId]) -> None:
        """Others may be asked, too (R22.7). It shows in what follows the next event: somebody is being asked now."""
        new = self._to_compare.add(peers)
        if isinstance(self._part, BranchProgress):
            self._part.extend(new)

    def handle(self, event: r.RecoveryEvent, *, now: Monotonic) -> list[r.Effect]:
        """One event. Never raises for what peers say."""
        lag_s = self._questions.woken(now, self.next_deadline())
        if isinstance(self._part, Comparison):
            self._part.stood_still(lag_s)
        self._now = now
        if self.is_over:
            return []
        if isinstance(event, r.Tick):
            self._on_tick()
        elif isinstance(event, r.Answer):
            self._on_answer(event)
        else:
            self._on_step(event)
        return self._taken()

    def check(self) -> None:
        """Invariants, for tests and simulation: rule R-e, and never two steps at a time."""
        is_waiting = bool(self._questions.open) or self._step is not None or self.is_over
        assert is_waiting, f"recovery in state {self._state} waits for nothing"
        assert self.is_over or self._waiting_for, "recovery waits without a reason"
        assert not (self.is_over and self._questions.open), "recovery is over and still waits"
        assert self._state in r.STATES

    def _taken(self) -> list[r.Effect]:
        effects, self._out = self._out, []
        return effects

    # --- events to outcomes

    def _on_tick(self) -> None:
        for request in self._questions.expired(self._now):
            asked = self._questions.open.get(request)
            if asked is None:
                continue  # the one before ended it
            self._out.append(r.Cancel(request))
            seconds = self._now - asked.since
            self._on_answer(r.AskFailed(request, f"no answer about {asked.what} for {seconds:.0f} s"))
        if isinstance(self._part, BranchProgress):
            self._enact(self._part.on_tick(now=self._now))
        elif isinstance(self._part, Comparison) and self._is_overdue(self._part):
            self._enact(OVERDUE)

    def _on_answer(self, event: r.Answer) -> None:
        asked, part = self._questions.answered(event.request), self._part
        if asked is None or part is None or isinstance(part, TakingBack):
            return
        self._faults.hear(asked, event)
        if isinstance(event, r.AskFailed) and event.is_wrong and isinstance(asked.ask, r.AskChunk):
            self._out.append(r.SourceDropped(asked.peer, event.reason))
            self._withdraw(lambda ask: ask.peer == asked.peer)
        if isinstance(part, Comparison):
            outcome = part.on_answer(event)
            if isinstance(outcome, Asking) and self._is_overdue(part):
                outcome = OVERDUE
            elif isinstance(outcome, Asking) and self._is_trickle(part, asked, event):
                self._faults.late[asked.peer] = "gives few entries at a time, and late"
                self._to_compare.put_aside(part, now=self._now)
                outcome = NotBetter(is_compared=False)
            self._enact(outcome)
        else:
            part_taken = asked.took_s(self._now) / asked.patience_s
            self._enact(part.on_answer(asked.ask, event, now=self._now, part_taken=part_taken))

    def _is_trickle(self, part: Comparison, asked: Asked, event: r.Answer) -> bool:
        """Others wait: that were not asked yet, and it was late, or any, and it has been asked for long."""
        if not isinstance(event, r.EntriesCame) or len(event.entries) >= FEW_ENTRIES:
            return False
        timeout_s, waiting = self._limits.answer_timeout_s, self._to_compare
        is_late = waiting.has_unasked and asked.took_s(self._now) > timeout_s / 2
        return is_late or (bool(waiting.left) and self._now - part.asked_since > timeout_s)

    def _is_overdue(self, part: Comparison) -> bool:
        return self._step is None and part.until is not None and self._now >= part.until

    def _on_step(self, done: r.StepDone) -> None:
        step, part = self._step, self._part
        if step is None:
            return
        self._step = None
        self._chain.note(step, done)
        if part is None:
            self._next_peer()  # rebuilt as ordered, or turned back
        elif isinstance(part, Comparison | TakingBack):
            self._enact(part.on_step(done))
        else:
            self._enact(part.on_step(done, now=self._now))

    # --- outcomes to effects and states

    def _enact(self, outcome: Outcome) -> None:
        match outcome:
            case Asking():
                for overtaken in outcome.superseded:
                    self._faults.overtaken(*overtaken)
                self._withdraw(lambda ask: isinstance(ask, r.AskChunk) and (ask.peer, ask.number) in outcome.superseded)
                if any(not isinstance(question.ask, r.AskChunk) for question in outcome.questions):
                    self._leave_download()
                for question in outcome.questions:
                    self._ask(question)
            case NotBetter(is_compared):
                self._num_compared += is_compared and isinstance(self._part, Comparison)
                self._next_peer()
            case Kept(found):
                self._out.append(found)
                self._num_compared += 1
                self._next_peer()
            case Better():
                self._take(outcome)
            case Complete():
                self._complete()
            case Failed():
                self._give_up(outcome)
            case _:
                self._order_step(outcome)

    def _ask(self, question: Question) -> None:
        ask = self._questions.put(question.ask, self._now, self._limits.patience_s(question.num_bytes))
        self._go(ask)
        self._out.append(ask)

    def _order_step(self, step: r.Step) -> None:
        assert self._step is None, "a step before the last one was answered"
        self._withdraw(lambda ask: True)
        self._go(step)
        self._step = step
        self._out.append(step)

    def _withdraw(self, is_moot: Callable[[r.Ask], bool]) -> None:
        self._out += [r.Cancel(request) for request in self._questions.withdraw(is_moot)]

    def _go(self, wanted: r.Ask | r.Step | r.Done) -> None:
        self._state, self._wanted = after(self._state, wanted), wanted

    def _next_peer(self) -> None:
        self._part = None
        self._withdraw(lambda ask: True)
        # A head that has moved ends it, also when only a part of a chain could be had: the next recovery asks for more.
        to_compare = self._to_compare
        is_through = to_compare.is_over and bool(self._num_compared)
        if self._chain.has_moved or not to_compare.left or is_through:
            self._finish()
            return
        heads, adopted = self._chain.heads, self._adopted
        if adopted is not None and heads[adopted[0] : adopted[0] + 1] == [adopted[1]]:
            adopted = None  # we are there
        following, reverted = to_compare.pop(), self._order.reverted
        if isinstance(following, Comparison):
            comparison = following
        else:
            patience_s = self._order.patience_s.get(following)
            comparison = Comparison(following, heads, self._limits.entries_max, adopted, reverted, patience_s)
        self._part = comparison
        self._enact(comparison.start(now=self._now))

    def _take(self, better: Better) -> None:
        if better.own or len(better.branch.entries) > 1:
            self._out.append(r.PauseTrainers("catching up"))
        donors = donors_of(better.peer, self._to_compare.donors)
        sources = Sources(donors, self._faults.liars, self._limits, self._payload_bytes)
        progress = BranchProgress(better, self._chain, sources)
        self._part = progress
        self._enact(progress.start())

    def _complete(self) -> None:
        part = self._part
        if isinstance(part, BranchProgress) and part.has_own:
            self._out.append(r.ForgetOwn())
        self._num_compared += isinstance(part, BranchProgress)
        self._next_peer()

    def _give_up(self, failed: Failed) -> None:
        """The branch is false or cannot be had."""
        part = self._part
        assert part is not None and not isinstance(part, TakingBack)
        back = part.way_back() if isinstance(part, BranchProgress) else None
        has_part = self._chain.has_moved and (back is None or back.is_kept)
        for peer in failed.made_up_by:
            self._faults.made_up(peer, failed.reason)
            self._out.append(r.SourceDropped(peer, failed.reason))
        self._faults.note(part.peer, failed.reason, is_false=failed.is_false, has_part=has_part)
        if failed is OVERDUE:
            self._faults.overdue.append(part.peer)
        self._leave_download()
        if back is None:
            self._next_peer()
        else:
            self._part = None
            self._order_step(back)

    def _leave_download(self) -> None:
        """Of a snapshot that nobody gives, if one is under way."""
        if self._state == "fetching_chunks":
            self._withdraw(lambda ask: isinstance(ask, r.AskChunk))
            self._out.append(r.CloseDownload())

    def _finish(self) -> None:
        faults = self._faults
        is_useful = bool(self._num_compared) or self._chain.has_moved
        failure = "" if is_useful else "; ".join(faults.reasons) or "no peer to ask"
        unconfirmed, unavailable = tuple(faults.unconfirmed), tuple(faults.unavailable)
        in_part = faults.in_part if faults.in_part in unavailable else None
        unasked, added = self._to_compare.left, self._to_compare.added
        done = r.Done(
            failure, self._chain.settled, unconfirmed, unavailable, unasked, in_part, added, tuple(faults.overdue)
        )
        self._go(done)
        self._out.append(done)
