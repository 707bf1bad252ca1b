"""Sites whose contributions stand out are named; honest ones are not."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

import pytest

from dilocoxd.daemon.round.suspects import Suspects, typical_cosines
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.telemetry.events import Event
from dilocoxd.telemetry.suspicions import VoteContradicted
from dilocoxd.wire.entry import Contribution, Entry, Evidence, VotedEntry
from dilocoxd.wire.local.outer_worker import SKETCH_NUMBERS, ClippedShare

PEERS = tuple(PeerId(f"Qm{letter}") for letter in "abcd")
NOTHING = Digest(bytes(32))


@dataclass
class Told:
    """Takes the place of the alert book."""

    alerts: list[tuple[str, str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def alert(self, code: str, text: str) -> None:
        self.alerts.append((code, text))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def suspects(told: Told) -> Suspects:
    return Suspects(told, told.events.append)  # type: ignore[arg-type]


def entry(round_index: int) -> Entry:
    named = tuple(Contribution(peer, PhaseId(round_index), RoundIndex(0), 1, 1, NOTHING) for peer in PEERS)
    return Entry(RunId("r"), RoundIndex(round_index), NOTHING, NOTHING, named, (NOTHING,), 0, 0, 1, (), ())


def sketches(rng: random.Random, signs: tuple[int, ...], noise: float = 1.0) -> bytes:
    common = [rng.gauss(0, 1) for _ in range(SKETCH_NUMBERS)]
    return b"".join(array("f", [sign * (c + noise * rng.gauss(0, 1)) for c in common]).tobytes() for sign in signs)


def test_who_was_clipped_hard_is_named_with_the_entry_and_its_size(suspects: Suspects, told: Told) -> None:
    suspects.applied(entry(12), (ClippedShare(2, 5, 1e6), ClippedShare(1, 5, 9.0), ClippedShare(60, 5, 1e9)))
    assert told.alerts == [("outsized_contribution", "Qmc: 1e+06 times the median norm in entry 12")]
    assert [event.name for event in told.events] == ["contribution.outsized"]
    suspects.applied(entry(13), ())
    assert len(told.alerts) == 1


def left_out(part: float) -> tuple[ClippedShare, ...]:
    return (ClippedShare(2, 8, 0.0, part), ClippedShare(1, 1, 0.0, 0.1))


def test_of_whom_nothing_was_counted_twice_is_named_by_everybody(suspects: Suspects, told: Told) -> None:
    suspects.applied(entry(4), left_out(1.0))
    assert not told.alerts
    suspects.applied(entry(5), left_out(0.5))
    assert told.alerts == [("contrary_contribution", "Qmc: 50% left out of entry 5, against the others")]
    assert [event.name for event in told.events] == ["contribution.dropped"] * 2


def test_left_out_once_or_in_few_segments_is_no_alarm(suspects: Suspects, told: Told) -> None:
    for number in range(8):
        suspects.applied(entry(number), left_out((1.0, 0.4)[number % 2]))
    assert not told.alerts


def test_who_points_away_twice_is_named(suspects: Suspects, told: Told) -> None:
    rng = random.Random(1)
    for number in range(2):
        for _ in range(5):
            suspects.reduced((number, 0), PEERS, sketches(rng, (1, 1, -1, 1)))
        suspects.finished(RoundIndex(number))
        assert bool(told.alerts) == (number == 1)
    assert told.alerts[0][0] == "contrary_contribution"
    assert "Qmc: cosine -" in told.alerts[0][1]
    assert "Qma" not in told.alerts[0][1]


def test_one_bad_round_is_no_alarm(suspects: Suspects, told: Told) -> None:
    rng = random.Random(2)
    for number, signs in enumerate([(1, 1, -1, 1), (1, 1, 1, 1)] * 4):
        suspects.reduced((number, 0), PEERS, sketches(rng, signs))
        suspects.finished(RoundIndex(number))
    assert not told.alerts


def test_honest_sites_with_little_in_common_are_not_named(suspects: Suspects, told: Told) -> None:
    rng = random.Random(3)
    for number in range(300):
        suspects.reduced((number, 0), PEERS, sketches(rng, (1, 1, 1, 1), noise=2.0))
        suspects.finished(RoundIndex(number))
    assert not told.alerts


def test_attempts_that_failed_do_not_count_and_odd_sketches_are_ignored(suspects: Suspects, told: Told) -> None:
    rng = random.Random(4)
    for number in range(4):
        suspects.reduced((number, 0), PEERS, sketches(rng, (1, 1, -1, 1)))
        suspects.reduced((number, 1), PEERS, sketches(rng, (1, 1, 1, 1)))
        suspects.reduced((number, 1), PEERS, b"\0" * 4)
        suspects.finished(RoundIndex(number))
    assert not told.alerts


def test_of_three_only_the_one_against_both_others_is_contrary() -> None:
    rng = random.Random(5)
    for _ in range(50):
        raw = array("f", sketches(rng, (1, -1, 1), noise=0.5))
        cosines = typical_cosines([raw[i * SKETCH_NUMBERS : (i + 1) * SKETCH_NUMBERS] for i in range(3)])
        assert cosines[1] < -0.2 < min(cosines[0], cosines[2])


def test_two_cannot_be_judged_and_zeros_are_neutral() -> None:
    assert typical_cosines([[1.0], [-1.0]]) == [0.0, 0.0]
    assert typical_cosines([[0.0], [1.0], [1.0]])[0] == 0.0


@pytest.mark.parametrize(("me", "who"), [(PEERS[0], "the site"), (PEERS[1], "this site itself")])
def test_who_voted_twice_is_named_with_the_round(suspects: Suspects, told: Told, me: PeerId, who: str) -> None:
    voted = [VotedEntry(Digest(bytes([number]) * 32), 0, b"s") for number in (1, 2)]
    suspects.voted_twice(Evidence(PEERS[1], b"k", RoundIndex(7), Attempt(2), NOTHING, *voted), me)
    text = f"{PEERS[1]}: {who} voted for two entries in attempt 2 of round 7"
    assert told.alerts == [("double_vote", text)]
    assert told.events == [VoteContradicted(peer=PEERS[1], round=7, attempt=2, entries=("01" * 8, "02" * 8))]
