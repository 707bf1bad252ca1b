"""Puts what is known of earlier lives into the journal, in front of what this life has seen."""

from collections import deque
from dataclasses import dataclass, replace

from dilocoxd.answers.rounds import RoundTimes
from dilocoxd.daemon.observe.earlier import EarlierLives
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.ids import PeerId
from dilocoxd.store.log import EntryLog
from dilocoxd.wire.entry import SignedEntry


@dataclass(frozen=True, slots=True)
class OwnWork:
    """What the chain has of this site."""

    tokens: int
    inner_steps: int


def read_chain(log: EntryLog, me: PeerId, first: int) -> tuple[list[SignedEntry], OwnWork]:
    """The entries from `first` on, and our sums over all. Reads the whole log once: call it in a thread."""
    entries, tokens, inner_steps = [], 0, 0
    for signed in log.entries():
        if signed.entry.round >= first:
            entries.append(signed)
        for one in signed.entry.contributions:
            if one.peer == me:
                tokens += one.tokens
                inner_steps += one.inner_steps
    return entries, OwnWork(tokens, inner_steps)


def restore(journal: Journal, told: EarlierLives, own: OwnWork) -> None:
    """Losses, rounds, totals, alerts and events of earlier lives. What nobody told stays unknown."""
    journal.inner_losses.begin_with(told.inner)
    journal.own_phases.begin_with(told.phases)
    journal.validation_losses.begin_with(sorted(told.validation.values()))
    _restore_rounds(journal, told)
    earlier = journal.earlier
    # Events may have been dropped, the chain never; what was trained and not delivered is in the events alone.
    earlier.tokens = max(told.tokens, own.tokens)
    earlier.inner_steps = max(told.inner_steps, own.inner_steps)
    earlier.bytes_sent, earlier.bytes_received = told.bytes_sent, told.bytes_received
    earlier.attempts_failed = told.attempts_failed
    journal.counted_since = told.first_at
    past = [replace(alert, text=journal.in_words(alert.text)) for alert in told.past_alerts]
    journal.past_alerts = deque([*past, *journal.past_alerts], journal.past_alerts.maxlen)
    journal.records = deque([*told.records, *journal.records], journal.records.maxlen)


def _restore_rounds(journal: Journal, told: EarlierLives) -> None:
    for number, row in list(journal.rounds.items()):
        if (reasons := told.failures.get(number)) and not row.failures:
            journal.keep(replace(row, failures=tuple(map(journal.in_words, reasons))))
        seen = told.rounds.get(number)
        # After a fork another entry may have this number: what was measured then belongs to the one that is gone.
        if seen is None or seen.entry_hash != row.entry_hash or row.attempts is not None:
            continue
        journal.keep(
            replace(
                journal.rounds[number],
                attempts=seen.attempts,
                bytes_sent=seen.bytes_sent,
                bytes_received=seen.bytes_received,
                times=RoundTimes(exchange_s=seen.exchange_s),
            )
        )
