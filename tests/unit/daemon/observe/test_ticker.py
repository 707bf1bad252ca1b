"""The lines for somebody who watches the terminal: their text, and that it is never silent for long."""

import itertools
from typing import Any

import pytest

from dilocoxd.answers.rounds import Contributor, RoundRow
from dilocoxd.answers.status import Status
from dilocoxd.answers.words import about
from dilocoxd.daemon.observe.ticker import (
    EARLY_EVERY_S,
    LINE_EVERY_S,
    LOOK_S,
    NOBODY_READY,
    Ticker,
    look_again_s,
    round_line,
    step_line,
    wait_line,
)
from dilocoxd.telemetry.events import fitted
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import PEERS, FakeView

SILENCE_S = 10.0
STOP_SILENCE_S = 2.0


def status(**changes: Any) -> Status:
    base: dict[str, Any] = {
        "state": "training", "waiting_for": "", "height": 13, "phase__inner_step": 12, "phase__inner_steps": 34,
        "phase__step_seconds": 2.0, "losses__inner": 3.412, "losses__validation": 3.4, "peers__missed_last_round": 1,
        "peers__took_part_last_round": 2, "progress__tokens_per_s": 1240.4, "progress__round_s": 41.7,
        "progress__eta_s": 7500.0,
    }  # fmt: skip
    found = changed(FakeView(13).status(), **{**base, **changes})
    assert isinstance(found, Status)
    return found


def row(number: int, *, is_ours: bool = True, committed_at: float = 2e9) -> RoundRow:
    who = [Contributor(peer=peer, phase=1, tokens=1, inner_steps=1, base_round=0) for peer in PEERS[:2]]
    return RoundRow(
        round=number, contributors=tuple(who), is_contributor=is_ours, bytes_sent=312_000, bytes_received=600_000,
        committed_at=committed_at,
    )  # fmt: skip


def test_a_round_is_one_line_with_all_that_people_ask() -> None:
    assert round_line(status(), row(12)) == (
        "round 12  2/3 sites  loss 3.41 (val 3.40)  1,240 tok/s  next in ~42 s  312.0 kB up, 600.0 kB down"
        "  learning rate falls for 2 h 5 min more"
    )
    bare = status(losses__inner=None, losses__validation=None, progress__round_s=None, progress__eta_s=None)
    assert round_line(bare, row(12, is_ours=False)) == (
        "round 12  2/3 sites  1,240 tok/s  without us  312.0 kB up, 600.0 kB down"
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "round 13  step 12/34  loss 3.41 (val 3.40)  exchange in ~44 s  1,240 tok/s"
         "  learning rate falls for 2 h 5 min more"),
        (
            {"waiting_for": NOBODY_READY},  # who is in the middle of its own phase
            "round 13  step 12/34  loss 3.41 (val 3.40)  exchange in ~44 s  1,240 tok/s"
            "  learning rate falls for 2 h 5 min more",
        ),
        (
            {"waiting_for": NOBODY_READY, "phase__inner_step": 34, "progress__eta_s": 0.0},
            f"round 13, step 34/34: waits for {NOBODY_READY}  loss 3.41 (val 3.40)  1,240 tok/s"
            "  learning rate at its lowest",
        ),
        (
            {"waiting_for": "segments of attic", "phase__inner_step": 34, "progress__eta_s": 0.0},
            "round 13, step 34/34: waits for segments of attic  loss 3.41 (val 3.40)  1,240 tok/s"
            "  learning rate at its lowest",
        ),
        (
            {  # the first step is computed meanwhile
                "phase__inner_step": 0, "phase__step_seconds": 0.0, "waiting_for": "the validation loss",
                "losses__inner": None, "losses__validation": None, "progress__tokens_per_s": None,
                "progress__eta_s": None,
            },
            "round 13, step 0/34: waits for the validation loss",
        ),
    ],
)  # fmt: skip
def test_within_a_round_the_steps_are_told(changes: dict[str, Any], line: str) -> None:
    assert step_line(status(**changes)) == line


@pytest.mark.parametrize("end_s", [12.0, 96.0, 3300.0])
def test_eighty_columns_show_when_the_run_ends_or_what_comes_next(end_s: float) -> None:
    room = 80 - len("12:34:56 ")
    ending = status(progress__stop_after_tokens=60_000, progress__end_s=end_s, progress__round_s=2.4)
    assert f"  ends in ~{about(end_s)}" in fitted(round_line(ending, row(12)), room)
    assert fitted(round_line(status(), row(12)), room).endswith("  1,240 tok/s  next in ~42 s")
    long = status(phase__inner_steps=100, phase__step_seconds=end_s)
    assert "  exchange in ~" in fitted(step_line(long), room)


def test_before_it_trains_the_line_says_what_is_waited_for_and_how_far_it_is() -> None:
    doing = "the trainers to start (data: tokenised 64 of 502 chunks)"
    assert wait_line(status(state="preparing", waiting_for=doing)) == f"preparing: waits for {doing}"
    assert wait_line(status(state="catching_up", waiting_for="")) == "catching up"


def told(looks: list[tuple[float, Status, RoundRow | None]]) -> list[tuple[float, str]]:
    ticker = Ticker()
    return [(at, line) for at, seen, newest in looks if (line := ticker.look(seen, newest, at))]


def test_something_moves_at_once_and_silence_is_never_longer_than_ten_seconds() -> None:
    starting = status(state="starting", waiting_for="p2pd to start")
    preparing = [status(state="preparing", waiting_for=f"the trainers to start (data: {n})") for n in range(101)]
    lines = told([(0.0, starting, None), *((1.0 + n, seen, None) for n, seen in enumerate(preparing))])
    assert [at for at, _ in lines][:4] == [0.0, 2.0, 5.0, 8.0], "a person who has just started it is told more"
    assert [at for at, _ in lines][-3:] == [83.0, 91.0, 99.0]
    assert lines[0][1] == "starting: waits for p2pd to start"
    assert lines[3][1].endswith("(data: 7)")
    times = [at for at, _ in told([(float(n), status(), row(12)) for n in range(121)])]
    silences = [b - a for a, b in itertools.pairwise(times)]
    assert max(silences) <= LINE_EVERY_S < SILENCE_S - LOOK_S and times[0] == 0.0
    assert max(silences[:10]) <= EARLY_EVERY_S


def test_the_same_wait_twice_in_a_row_is_told_with_its_time() -> None:
    waiting = status(state="joining", waiting_for="another peer of this run to answer")
    lines = [line for _, line in told([(float(n), waiting, None) for n in range(8)])]
    assert lines == [
        "joining: waits for another peer of this run to answer",
        "joining: waits for another peer of this run to answer (3 s so far)",
        "joining: waits for another peer of this run to answer (6 s so far)",
    ]


@pytest.mark.parametrize("stopped_at", [0.0, 0.9, 12.3, 70.1])
def test_while_it_stops_no_silence_is_longer_than_two_seconds(stopped_at: float) -> None:
    settling = status(state="leaving", waiting_for="the round to be settled")
    saving = status(state="leaving", waiting_for="the workers to save checkpoints and error feedback")
    ticker, now, lines = Ticker(), 0.0, list[tuple[float, str]]()
    while now < stopped_at + 18.0:
        seen = status() if now < stopped_at else settling if now < stopped_at + 1.0 else saving
        line = ticker.look(seen, row(12), now)
        if line:
            lines.append((now, line))
        now += look_again_s(seen)
    stopping = [(at, line) for at, line in lines if line.startswith("stopping: waits for ")]
    times = [stopped_at, *(at for at, _ in stopping), stopped_at + 18.0]
    assert max(b - a for a, b in itertools.pairwise(times)) <= STOP_SILENCE_S
    assert stopping[0][1] == "stopping: waits for the round to be settled"
    (told,) = [at for at, line in stopping if line.endswith("checkpoints and error feedback")]
    assert told - stopped_at - 1.0 <= look_again_s(settling), "the next step is told at once"
    assert stopping[-1][1].endswith("checkpoints and error feedback (16 s so far)")


def test_rounds_faster_than_a_second_share_a_line_and_old_ones_are_not_told() -> None:
    looks: list[tuple[float, Status, RoundRow | None]] = [(0.25 * n, status(), row(5 + n)) for n in range(9)]
    assert [line.split("  ")[:2] for _, line in told(looks)] == [
        ["round 13", "step 12/34"],
        ["round 9", "2/3 sites"],
        ["round 13", "2/3 sites"],
    ]


def test_rounds_of_an_earlier_life_are_no_news() -> None:
    """After a restart the newest round that the site remembered was told as one that had just been committed."""
    ticker, before = Ticker(), row(11, committed_at=FakeView(13).status().started_at - 60)
    told = [ticker.look(status(state="starting"), None, 0.0), ticker.look(status(), before, 5.0)]
    assert not [line for line in told if line.startswith("round 11")]
    assert ticker.look(status(), row(12), 10.0).startswith("round 12  2/3 sites")
