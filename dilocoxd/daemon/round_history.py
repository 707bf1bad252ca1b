"""Turns what the round machine reports into rows, spans, counters and events for people."""

import asyncio
from collections.abc import Callable
from typing import Final

from dilocoxd.daemon.others_timeline import OtherSpan
from dilocoxd.daemon.state import Journal
from dilocoxd.daemon.transfers import RoundBytes
from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.commands import AttemptFailed, RoundSummary
from dilocoxd.telemetry.catalogue import FaultHeld, RoundAbandoned, RoundCommitted
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.metrics import Metrics
from dilocoxd.wire.entry import SignedEntry, entry_hash

ATTEMPT_PARTS: Final = ("gather_s", "exchange_s", "vote_s", "persist_s", "apply_s")


class RoundHistory:
    """Writes to the journal, the event log and the metrics."""

    def __init__(
        self, me: PeerId, journal: Journal, events: EventLog, metrics: Metrics, chain: Callable[[], ChainView]
    ) -> None:
        self._me = me
        self._chain = chain
        self._journal = journal
        self._events = events
        self._metrics = metrics
        self._form_s = 0.0
        self._reduce_s: dict[int, float] = {}
        self._idle_s_before = 0.0
        self.idle_s = 0.0
        """Total idle seconds of the trainers, as the site reported last."""

    def _unix(self, at: Monotonic) -> float:
        return self._journal.now() - (asyncio.get_running_loop().time() - at)

    def formed(self, seconds: float) -> None:
        """Our contribution for the coming round was formed."""
        self._form_s = seconds

    def held(self, point: str) -> None:
        """A test stops us here."""
        self._events.emit(FaultHeld(point=point))

    def reduced(self, round_index: int, seconds: float) -> None:
        """One of our segments was reduced."""
        self._reduce_s[round_index] = self._reduce_s.get(round_index, 0.0) + seconds

    def attempt_failed(self, failed: AttemptFailed) -> None:
        """An attempt was given up."""
        self._journal.totals.attempts_failed += 1
        row = self._journal.row(failed.round)
        row.add_failure(f"attempt {failed.attempt}: {failed.reason}")
        waited_s = self._journal.now() - row.started_at
        self._events.emit(
            RoundAbandoned(round=failed.round, attempt=failed.attempt, reason=failed.reason, waited_s=waited_s)
        )

    def finished(self, summary: RoundSummary, counts: RoundBytes) -> None:
        """A round is applied."""
        row = self._journal.row(summary.round)
        row.attempts = summary.num_attempts
        row.coordinator = summary.coordinator or ""
        row.is_contributor = summary.is_contributor
        row.entry_hash = summary.entry_hash.hex()
        row.contributors = summary.contributions
        chain = self._chain()
        row.next_lowrank_r, row.next_inner_steps = chain.lowrank_r, chain.inner_steps
        row.bytes_sent, row.bytes_received = counts.sent, counts.received
        row.started_at = self._unix(summary.started_at)
        row.committed_at = self._unix(summary.persisted_at)
        row.applied_at = self._unix(summary.applied_at)
        marks = (
            summary.started_at,
            summary.gathered_at,
            summary.exchanged_at,
            summary.voted_at,
            summary.persisted_at,
            summary.applied_at,
        )
        for part, start, end in zip(ATTEMPT_PARTS, marks, marks[1:], strict=False):
            row.times[part] = max(0.0, end - start)
        row.times["form_s"], self._form_s = self._form_s, 0.0
        row.times["reduce_s"] = self._reduce_s.pop(summary.round, 0.0)
        row.trainer_idle_s, self._idle_s_before = self.idle_s - self._idle_s_before, self.idle_s
        self._account(summary, counts)
        self._journal.row(summary.round + 1)  # the next round begins now

    def took(self, signed: SignedEntry, at_unix_s: float | None = None) -> None:
        """A round that was decided without us, or in an earlier life (`at_unix_s`)."""
        entry = signed.entry
        now = self._journal.now() if at_unix_s is None else at_unix_s
        row = self._journal.row(entry.round)
        row.entry_hash = entry_hash(entry).hex()
        row.contributors = entry.contributions
        row.next_lowrank_r, row.next_inner_steps = entry.next_lowrank_r, entry.next_inner_steps
        row.is_contributor = any(c.peer == self._me for c in entry.contributions)
        row.started_at = min(row.started_at, now)
        row.committed_at = row.applied_at = now

    def _account(self, summary: RoundSummary, counts: RoundBytes) -> None:
        row, totals = self._journal.row(summary.round), self._journal.totals
        began, ended = self._unix(summary.gathered_at), self._unix(summary.voted_at)
        self._journal.add_span("exchange", began, ended, summary.round)
        for contribution in summary.contributions:
            if contribution.peer != self._me:
                self._journal.others.add(contribution.peer, OtherSpan("exchange", began, ended, summary.round))
        self._journal.add_span("apply", self._unix(summary.persisted_at), row.applied_at, summary.round)
        totals.bytes_sent += counts.sent
        totals.bytes_received += counts.received
        self._metrics.observe_round(row.times)
        for part in ATTEMPT_PARTS:
            self._journal.tell(f"round/{part}", row.times[part], summary.round)
        self._journal.tell("round/contributors", len(summary.contributions), summary.round)
        self._journal.tell("round/bytes_sent", counts.sent, summary.round)
        self._journal.tell("round/bytes_received", counts.received, summary.round)
        self._journal.tell("round/trainer_idle_s", row.trainer_idle_s, summary.round)
        self._events.emit(
            RoundCommitted(
                round=summary.round,
                attempt=max(0, summary.num_attempts - 1),
                entry_hash=row.entry_hash,
                contributors=tuple(c.peer for c in summary.contributions),
                bytes_sent=counts.sent,
                bytes_received=counts.received,
                exchange_s=row.times["exchange_s"],
            )
        )
