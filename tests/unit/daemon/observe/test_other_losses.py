"""Losses that other sites tell: placed by our chain alone, bounded, asked for seldom, counted where they are wrong."""

import asyncio
import io
import math
from collections.abc import Callable

import pytest

from dilocoxd.answers.rounds import Contributor, RoundRow
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.other_sites import (
    NEWEST_KEPT,
    PHASES_KEPT,
    POINTS_KEPT,
    SITES_KEPT,
    OtherLosses,
    PhaseBook,
    placed,
)
from dilocoxd.daemon.peers.losses import (
    ASK_AGAIN_S,
    ASK_EVERY_S,
    EMPTY_S,
    PEERS_KEPT,
    LossAsker,
    LossSources,
    own_losses,
)
from dilocoxd.daemon.peers.offences import Offences
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId, UnixTime
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.records import PHASES_MAX, PhaseLoss, encode_phase_losses

A, B = PeerId("QmA"), PeerId("QmB")


def row(number: int, **phases: int) -> RoundRow:
    """A round at 100 s, 101 s, ... with the phase of each site in it."""
    names = tuple(
        Contributor(peer=f"Qm{name}", phase=phase, tokens=1, inner_steps=1, base_round=0)
        for name, phase in phases.items()
    )
    return RoundRow(round=number, contributors=names, committed_at=100.0 + number)


def journal_of(*rows: RoundRow) -> Journal:
    journal = Journal(lambda: UnixTime(1000.0))
    for one in rows:
        journal.keep(one)
    return journal


def items(*pairs: tuple[int, float]) -> tuple[PhaseLoss, ...]:
    return tuple(PhaseLoss(phase, round(1e6 * loss)) for phase, loss in pairs)


class Peers:
    """Other sites that answer what they are told to."""

    def __init__(self, journal: Journal, answer: Callable[[PeerId, str], bytes], *live: PeerId) -> None:
        self.live, self.answer = list(live), answer
        self.asked: list[tuple[PeerId, str]] = []
        self.newest = 9
        self.events = EventLog(None, stream=io.StringIO())
        self.told: list[dict[str, object]] = []
        self.events.listen(self.told.append)
        self.guard = PeerGuard(lambda: 0.0)
        offences = Offences(self.guard, self.events, AlertBook(journal, self.events))
        sources = LossSources(self.fetch, lambda: self.live, lambda peer: self.newest, offences.count)
        self.asker = LossAsker(journal, sources)

    async def fetch(self, peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        self.asked.append((peer, resource))
        return self.answer(peer, resource)


def test_claims_stand_only_at_entries_that_name_the_phase() -> None:
    rows = [row(0, A=3, B=7), row(1, B=8), row(2, A=5, B=9), RoundRow(round=3)]
    found = placed(rows, A, items((3, 4.0), (4, 1.0), (5, 3.5), (9, 0.1)))
    assert found == [(3, (100.0, 0, 4.0)), (5, (102.0, 2, 3.5))], (
        "4 went into no round, and 9 is a phase of another site"
    )
    assert placed(rows, A, items((5, 3.5))) == [(5, (102.0, 2, 3.5))]
    assert placed(rows, A, ()) == placed([], A, items((3, 4.0))) == []


def test_curve_grows_and_no_answer_changes_what_was_told() -> None:
    book = OtherLosses()
    assert (book.next_phase(A), book.newest(A), book.of(A), book.sites()) == (0, None, (), [])
    book.add(A, [(3, (100.0, 0, 4.0))])
    book.add(A, [(3, (100.0, 0, 0.0)), (5, (102.0, 2, 3.5))])
    assert book.of(A) == ((100.0, 0, 4.0), (102.0, 2, 3.5))
    assert (book.next_phase(A), book.newest(A)) == (6, (102.0, 2, 3.5))
    book.add(B, [], read_to=1024)
    assert book.sites() == [A] and book.next_phase(B) == 1024


def test_long_curves_keep_their_beginning_and_many_sites_push_out_the_oldest() -> None:
    book = OtherLosses()
    for number in range(20 * POINTS_KEPT):
        book.add(A, [(number, (float(number), number, 5.0 if number < 10 * POINTS_KEPT else 3.0))])
        assert len(book.of(A)) < 2 * POINTS_KEPT
    times = [point[0] for point in book.of(A)]
    assert times == sorted(times) and times[0] < POINTS_KEPT and times[-1] == 20 * POINTS_KEPT - 1
    assert times[-NEWEST_KEPT:] == [float(20 * POINTS_KEPT - n) for n in range(NEWEST_KEPT, 0, -1)]
    assert book.of(A)[0][2] == 5.0 and book.of(A)[-1][2] == 3.0
    for number in range(SITES_KEPT):
        book.add(f"Qm{number}", [(0, (1.0, 0, 2.0))])
    assert len(book.sites()) == SITES_KEPT and A not in book.sites()


def test_own_phases_are_told_with_those_of_earlier_lives_and_are_bounded() -> None:
    journal = journal_of()
    journal.own_phases.keep(8, 2.75)
    journal.own_phases.begin_with({7: 3.0, 8: 9.0})
    assert own_losses(journal, 0) == encode_phase_losses({7: 3.0, 8: 2.75}, 0)
    assert own_losses(journal, 8) == encode_phase_losses({8: 2.75}, 0)
    book = PhaseBook()
    for phase in range(PHASES_KEPT + 5):
        book.keep(phase, math.pi)
    assert len(book.losses) == PHASES_KEPT and 4 not in book.losses and 5 in book.losses


async def test_peers_are_asked_from_where_their_curve_ends_and_seldom() -> None:
    journal = journal_of(row(0, A=3), row(1, A=4))
    known = {3: 4.0, 4: 3.5, 5: 3.25}
    peers = Peers(journal, lambda peer, resource: encode_phase_losses(known, int(resource.rpartition("/")[2])), A)
    await peers.asker.look(0.0)
    await peers.asker.look(ASK_EVERY_S - 0.1)
    assert peers.asked == [(A, "losses/0")] and journal.other_losses.newest(A) == (101.0, 1, 3.5)
    journal.keep(row(2, A=5))
    await peers.asker.look(ASK_EVERY_S)
    assert peers.asked[1:] == [(A, "losses/5")], "the phase that no entry named is asked for again"
    assert journal.other_losses.newest(A) == (102.0, 2, 3.25)
    peers.newest = 2
    assert peers.asker.due(1e9) == [], "it says of no newer entry that it names it"
    peers.newest, peers.live = 3, []
    assert peers.asker.due(1e9) == []


async def test_history_longer_than_an_answer_is_read_on_even_where_no_entry_here_names_it() -> None:
    journal = journal_of(row(0, A=PHASES_MAX + 7))
    known = dict.fromkeys(range(PHASES_MAX + 8), 2.0)
    peers = Peers(journal, lambda peer, resource: encode_phase_losses(known, int(resource.rpartition("/")[2])), A)
    await peers.asker.look(0.0)
    await peers.asker.look(ASK_EVERY_S)
    assert [resource for _, resource in peers.asked] == ["losses/0", f"losses/{PHASES_MAX}"]
    assert journal.other_losses.of(A) == ((100.0, 0, 2.0),)


async def test_who_does_not_answer_or_answers_badly_is_left_alone_for_a_while() -> None:
    def answer(peer: PeerId, resource: str) -> bytes:
        if peer == A:
            raise PeerError("refused: not_found: there is no resource 'losses/0'")
        return encode_phase_losses({}, 0)

    journal = journal_of(row(0, A=3, B=3))
    peers = Peers(journal, answer, A, B)
    await peers.asker.look(0.0)
    assert journal.other_losses.sites() == [] and peers.told == [] and peers.guard.bad_input() == {}
    assert peers.asker.due(EMPTY_S - 1) == [] and peers.asker.due(EMPTY_S) == [B]
    assert peers.asker.due(ASK_AGAIN_S - 1) == [B] and peers.asker.due(ASK_AGAIN_S) == [A, B]


@pytest.mark.parametrize(
    "data", [b"", b"\x91\x91\x92\x03\xff", encode_phase_losses({3: 1.0}, 0)[:-1], b"\x91\x92\x92\x04\x01\x92\x03\x01"]
)
async def test_bad_answer_is_counted_told_and_shown_nowhere(data: bytes) -> None:
    journal = journal_of(row(0, A=3, B=3))
    peers = Peers(journal, lambda peer, resource: data if peer == A else encode_phase_losses({3: 2.0}, 0), A, B)
    await peers.asker.look(0.0)
    assert journal.other_losses.sites() == [B], "others are shown all the same"
    assert peers.guard.bad_input() == {A: {"malformed": 1}}
    (told,) = peers.told
    assert (told["event"], told["peer"], told["code"]) == ("input.rejected", A, "malformed")
    assert str(told["detail"]).startswith("losses/0: ")
    assert peers.asker.due(ASK_AGAIN_S - 1) == [B], "A has to wait"


async def test_wrong_frames_are_counted_like_wrong_bytes_and_books_stay_small() -> None:
    def answer(peer: PeerId, resource: str) -> bytes:
        raise WireError("too_large", f"{resource} has 99999 bytes, at most 16384")

    journal = journal_of(row(0, A=3))
    peers = Peers(journal, answer, *(PeerId(f"Qm{number}") for number in range(PEERS_KEPT + 10)))
    await peers.asker.look(0.0)
    assert len(peers.asked) == PEERS_KEPT + 10 and len(peers.asker._next) == PEERS_KEPT
    assert peers.guard.bad_input()["Qm0"] == {"too_large": 1}


async def test_silent_peer_holds_nobody_up_for_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.peers.losses.ASK_TIMEOUT_S", 0.01)
    journal = journal_of(row(0, A=3, B=3))
    peers = Peers(journal, lambda peer, resource: b"", A)

    async def fetch(peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        if peer == A:
            await asyncio.Event().wait()
        return encode_phase_losses({3: 2.0}, 0)

    sources = LossSources(fetch, lambda: [A, B], lambda peer: 9, lambda peer, code, detail: None)
    asker = LossAsker(journal, sources)
    await asker.look(0.0)
    assert journal.other_losses.sites() == [B] and peers.told == []
