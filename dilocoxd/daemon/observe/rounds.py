"""Turns what the round machine reports into rows, spans, counters and events for people."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dilocoxd.answers.history import SiteSpan
from dilocoxd.answers.rounds import RoundRow, RoundTimes
from dilocoxd.daemon.observe.earlier import read_earlier
from dilocoxd.daemon.observe.forecast import Exchanged, ExchangeForecast
from dilocoxd.daemon.observe.journal import ROUNDS_KEPT, Journal
from dilocoxd.daemon.observe.log_entries import contributor
from dilocoxd.daemon.observe.restoring import read_chain, restore
from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.round.outputs import AttemptFailed, RoundSummary
from dilocoxd.store.log import EntryLog
from dilocoxd.telemetry.catalogue import FaultHeld, RoundAbandoned, RoundCommitted
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.metrics import Metrics
from dilocoxd.wire.entry import SignedEntry, entry_hash, entry_unix_ms

ENTRIES_PER_STEP: Final = 50
"""Entries recalled before the loop may do something else: a few milliseconds with many contributors."""
ATTEMPT_PARTS: Final = ("gather_s", "exchange_s", "vote_s", "persist_s", "apply_s")


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """Counters of one round, for /v1/rounds."""

    sent: int
    received: int
    sending_s: float
    """Time in which at least one payload was under way to somebody."""


class RoundHistory:
    """Writes to the journal, the event log and the metrics."""

    def __init__(
        self,
        me: PeerId,
        journal: Journal,
        events: EventLog,
        metrics: Metrics,
        chain: Callable[[], ChainView],
        forecast: ExchangeForecast,
    ) -> None:
        self._me = me
        self._chain = chain
        self._journal = journal
        self._events = events
        self._metrics = metrics
        self._forecast = forecast
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
        self._journal.add_failure(failed.round, f"attempt {failed.attempt}: {failed.reason}")
        waited_s = self._journal.now() - self._journal.row(failed.round).started_at
        self._events.emit(
            RoundAbandoned(round=failed.round, attempt=failed.attempt, reason=failed.reason, waited_s=waited_s)
        )

    def finished(self, summary: RoundSummary, counts: RoundBytes) -> None:
        """A round is applied."""
        chain = self._chain()
        idle_s, self._idle_s_before = self.idle_s - self._idle_s_before, self.idle_s
        row = replace(
            self._journal.row(summary.round),
            attempts=summary.num_attempts,
            coordinator=summary.coordinator or "",
            contributors=tuple(contributor(one) for one in summary.contributions),
            is_contributor=summary.is_contributor,
            entry_hash=summary.entry_hash.hex(),
            bytes_sent=counts.sent,
            bytes_received=counts.received,
            next_lowrank_r=chain.lowrank_r,
            next_inner_steps=chain.inner_steps,
            trainer_idle_s=idle_s,
            started_at=self._unix(summary.started_at),
            committed_at=self._unix(summary.persisted_at),
            applied_at=self._unix(summary.applied_at),
            times=self._times(summary),
        )
        self._journal.keep(row)
        self._account(row, summary, counts)
        exchanged = Exchanged(len(row.contributors), counts.sent, counts.sending_s, row.times.exchange_s or 0.0)
        self._forecast.finished(exchanged)
        self._journal.row(summary.round + 1)  # the next round begins now

    def _times(self, summary: RoundSummary) -> RoundTimes:
        form_s, self._form_s = self._form_s, 0.0
        return RoundTimes(
            gather_s=max(0.0, summary.gathered_at - summary.started_at),
            exchange_s=max(0.0, summary.exchanged_at - summary.gathered_at),
            vote_s=max(0.0, summary.voted_at - summary.exchanged_at),
            persist_s=max(0.0, summary.persisted_at - summary.voted_at),
            apply_s=max(0.0, summary.applied_at - summary.persisted_at),
            form_s=form_s,
            reduce_s=self._reduce_s.pop(summary.round, 0.0),
        )

    async def recall(self, log: EntryLog, events_path: Path) -> None:
        """What log and event log say about the earlier lives of this daemon; a restart forgets nothing else of use."""
        first = max(0, log.height - ROUNDS_KEPT + 1)
        entries, own = await asyncio.to_thread(read_chain, log, self._me, first)
        for number, signed in enumerate(entries):
            self.took(signed)
            if number % ENTRIES_PER_STEP == 0:
                await asyncio.sleep(0)
        told = await asyncio.to_thread(read_earlier, events_path, self._journal.started_at)
        restore(self._journal, told, own)

    def took(self, signed: SignedEntry) -> None:
        """A round that was decided without us, or in an earlier life."""
        entry = signed.entry
        # Not when it came here: a newcomer takes a hundred in a second, which is not how long a round takes.
        voted_at = entry_unix_ms(signed) / 1000
        row = self._journal.row(entry.round)
        self._journal.keep(
            replace(
                row,
                entry_hash=entry_hash(entry).hex(),
                contributors=tuple(contributor(one) for one in entry.contributions),
                next_lowrank_r=entry.next_lowrank_r,
                next_inner_steps=entry.next_inner_steps,
                is_contributor=any(one.peer == self._me for one in entry.contributions),
                started_at=min(row.started_at, voted_at),
                committed_at=voted_at,
                applied_at=voted_at,
            )
        )

    def _account(self, row: RoundRow, summary: RoundSummary, counts: RoundBytes) -> None:
        journal, totals = self._journal, self._journal.totals
        began, ended = self._unix(summary.gathered_at), self._unix(summary.voted_at)
        journal.add_span("exchange", began, ended, row.round)
        for one in row.contributors:
            if one.peer != self._me:
                journal.others.add(one.peer, SiteSpan("exchange", began, ended, row.round))
        journal.add_span("apply", row.committed_at, row.applied_at, row.round)
        totals.bytes_sent += counts.sent
        totals.bytes_received += counts.received
        self._metrics.observe_round(row.times)
        for part in ATTEMPT_PARTS:
            journal.tell(f"round/{part}", getattr(row.times, part), row.round)
        journal.tell("round/contributors", len(row.contributors), row.round)
        journal.tell("round/bytes_sent", counts.sent, row.round)
        journal.tell("round/bytes_received", counts.received, row.round)
        journal.tell("round/trainer_idle_s", row.trainer_idle_s or 0.0, row.round)
        self._events.emit(
            RoundCommitted(
                round=row.round,
                attempt=max(0, summary.num_attempts - 1),
                entry_hash=row.entry_hash,
                contributors=tuple(one.peer for one in row.contributors),
                bytes_sent=counts.sent,
                bytes_received=counts.received,
                exchange_s=max(0.0, summary.exchanged_at - summary.gathered_at),
            )
        )
