"""A restart forgets no loss, no byte and no alert that the event log or the chain knows, and invents none."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dilocoxd.api.responses.columns import participation, round_columns
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.observe.earlier import read_earlier
from dilocoxd.daemon.observe.forecast import ExchangeForecast
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.progress import round_seconds
from dilocoxd.daemon.observe.rounds import RoundHistory
from dilocoxd.ids import PeerId, UnixTime
from dilocoxd.store.log import EntryLog
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.metrics import Metrics
from dilocoxd.wire.entry import entry_hash
from tests.unit.daemon.chain.chain_maker import base_view
from tests.unit.store.chains import new_log

PEER = PeerId("QmA")
ENTRIES = 3


FORECAST = ExchangeForecast("int4", lambda: None)


class Life:
    """One life of a daemon: what it remembers, and the events it writes."""

    def __init__(self, folder: Path, now: float) -> None:
        self.now = now
        self.path = folder / "logs" / "events.jsonl"
        self.events = EventLog(self.path, stream=io.StringIO(), clock=lambda: self.now)
        self.journal = Journal(lambda: UnixTime(self.now))
        self.alerts = AlertBook(self.journal, self.events)
        self.events.listen(self.journal.remember)
        metrics = Metrics(self._never, list)
        self.history = RoundHistory(PEER, self.journal, self.events, metrics, base_view, FORECAST)

    def _never(self) -> object:
        raise AssertionError("nobody scrapes here")

    def tell(self, *events: catalogue.Event) -> None:
        for event in events:
            self.now += 10.0
            self.events.emit(event)


def committed(number: int, entry: str) -> catalogue.RoundCommitted:
    return catalogue.RoundCommitted(
        round=number, attempt=1, entry_hash=entry, contributors=("QmA",), bytes_sent=100 + number,
        bytes_received=200 + number, exchange_s=1.5,
    )  # fmt: skip


def first_life(folder: Path, log: EntryLog) -> None:
    """Rounds 0 and 1 told; round 2 was decided while nobody wrote events."""
    hashes = [entry_hash(log.entry(number).entry).hex() for number in range(ENTRIES)]
    life = Life(folder, 1000.0)
    life.tell(
        catalogue.PhaseClosed(phase=0, inner_steps=20, tokens=800, mean_loss=5.0, global_step=20),
        catalogue.RoundAbandoned(round=1, attempt=0, reason="QmB vanished", waited_s=3.0),
        committed(0, hashes[0]),
        catalogue.ValidationMeasured(round=1, validation_loss=4.5),
        committed(1, hashes[1]),
        catalogue.PhaseClosed(phase=1, inner_steps=20, tokens=800, mean_loss=4.0, global_step=40),
        catalogue.PhaseClosed(phase=2, inner_steps=0, tokens=0, mean_loss=None, global_step=40),
        catalogue.ValidationMeasured(round=2, validation_loss=4.25),
    )
    life.alerts.alert("disk_low", "1 GB left")
    life.now += 5.0
    life.alerts.clear("disk_low")
    life.alerts.alert("alone", "nobody is there")
    life.events.close()


async def second_life(folder: Path, change: Callable[[Path], None] = lambda path: None) -> Life:
    log = new_log(folder / "log", ENTRIES)
    first_life(folder, log)
    life = Life(folder, 5000.0)
    change(life.path)
    life.now += 1.0
    life.journal.add_inner_loss(41, 3.9)
    await life.history.recall(log, life.path)
    return life


async def test_losses_and_bytes_of_an_earlier_life_are_there(tmp_path: Path) -> None:
    life = await second_life(tmp_path)
    journal = life.journal
    assert [point[1:] for point in journal.inner_losses.points()] == [(20, 5.0), (40, 4.0), (41, 3.9)]
    assert [point[1:] for point in journal.validation_losses.points()] == [(1, 4.5), (2, 4.25)]
    row = journal.rounds[1]
    assert (row.attempts, row.bytes_sent, row.bytes_received) == (2, 101, 201)
    assert (row.times.exchange_s, row.failures) == (1.5, ("attempt 0: QmB vanished",))
    assert (journal.earlier.bytes_sent, journal.earlier.attempts_failed) == (201, 1)
    assert journal.earlier.tokens >= 1600 and journal.counted_since == 1010.0


def test_pace_of_rounds_taken_at_once_is_that_of_their_votes(tmp_path: Path) -> None:
    """A newcomer's `dilocoxd status` said 0.0 s a round until it had been there for 16 of them."""
    log = new_log(tmp_path / "log", ENTRIES)
    entries = [log.entry(number) for number in range(ENTRIES)]
    life = Life(tmp_path, 5000.0)
    for number, signed in enumerate(entries):
        life.now += 0.001
        life.history.took(replace(signed, votes=tuple(replace(v, unix_ms=60_000 * number + 1) for v in signed.votes)))
    assert round_seconds(life.journal.rounds.values()) == 60.0


async def test_what_nobody_told_is_unknown_and_never_zero(tmp_path: Path) -> None:
    life = await second_life(tmp_path)
    row = life.journal.rounds[2]
    assert (row.attempts, row.bytes_sent, row.bytes_received, row.trainer_idle_s) == (None,) * 4
    assert row.times.exchange_s is None and life.journal.rounds[1].times.gather_s is None
    columns = round_columns(list(life.journal.rounds.values()))
    assert columns.round == [0, 1, 2]
    assert columns.bytes_sent == [100, 101, None]


async def test_figures_of_an_entry_that_a_fork_took_away_are_not_shown_for_its_successor(tmp_path: Path) -> None:
    def other_branch(path: Path) -> None:
        path.write_text(path.read_text().replace('"entry_hash":"', '"entry_hash":"00'))

    life = await second_life(tmp_path, other_branch)
    assert [life.journal.rounds[number].bytes_sent for number in range(ENTRIES)] == [None] * ENTRIES


async def test_alerts_of_an_earlier_life_are_history_and_stand_no_more(tmp_path: Path) -> None:
    life = await second_life(tmp_path)
    assert not life.journal.alerts
    past = {alert.code: alert for alert in life.journal.past_alerts}
    assert past["disk_low"].cleared_at == past["disk_low"].since + 5.0
    assert past["alone"].cleared_at is None
    assert [record["event"] for record in life.journal.records][-1] == "alert.raised"


async def test_damaged_lines_and_files_are_left_out(tmp_path: Path) -> None:
    def damage(path: Path) -> None:
        lines = path.read_text().splitlines()
        lines[0] = lines[0][:20]
        path.write_text("\n".join([*lines, "[]", "null", '{"time": "x"}', json.dumps({"event": "round.committed"})]))

    life = await second_life(tmp_path, damage)
    assert [point[1] for point in life.journal.inner_losses.points()] == [40, 41]
    assert read_earlier(tmp_path / "nowhere" / "events.jsonl", 0.0).first_at is None


async def test_unfinished_round_is_no_column(tmp_path: Path) -> None:
    life = await second_life(tmp_path)
    life.journal.row(ENTRIES)
    rows = list(life.journal.rounds.values())
    assert round_columns(rows).round[-1] == ENTRIES - 1
    shares = participation(rows)
    assert shares.rounds == [0, 1, 2] and all(len(site.tokens) == 3 for site in shares.sites)
