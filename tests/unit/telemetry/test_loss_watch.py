"""A jump of the loss is told once, and nothing else is: not warm-up, noise, outliers, two kinds of text, or NaN."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.answers.history import SiteSpan
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.site import SiteHistory
from dilocoxd.daemon.site.interface import StepReported
from dilocoxd.daemon.workers.kills import KillReader
from dilocoxd.ids import PhaseId, UnixTime
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.loss_watch import (
    BACK_STEPS,
    KNOWN_STEPS,
    LEVEL_STEPS,
    SPIKE_STEPS,
    WINDOW_STEPS,
    LossWatch,
)


def told(losses: Iterable[float], watch: LossWatch | None = None) -> list[tuple[int, bool]]:
    """(number of the step, whether the alert stands after it) at each change."""
    watch = watch or LossWatch()
    return [(i, bool(watch.text)) for i, loss in enumerate(losses) if watch.note(loss, f"step {i}")]


def noise(level: float, spread: float, steps: int, seed: int = 7) -> list[float]:
    random_ = random.Random(seed)
    return [random_.gauss(level, spread) for _ in range(steps)]


def warm_up(steps: int) -> list[float]:
    """From 10.8 down to 3, with noise."""
    return [3.0 + 7.8 * math.exp(-i / 150) + n for i, n in enumerate(noise(0.0, 0.08, steps))]


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.1, 0.5])
def test_noise_of_any_size_is_no_spike(spread: float) -> None:
    assert told(noise(3.0, spread, 20_000)) == []


def test_falling_loss_is_no_spike_and_one_in_it_is_told() -> None:
    assert told(warm_up(2000)) == []
    steps = warm_up(2000)
    for i in range(600, 640):
        steps[i] += 4.0
    assert told(steps) == [(600 + SPIKE_STEPS - 1, True), (640 + BACK_STEPS - 1, False)]


def test_outliers_are_no_spike_however_large() -> None:
    steps = noise(3.0, 0.05, 1000)
    steps[300] = 1e9
    steps[500 : 500 + SPIKE_STEPS - 1] = [9.0] * (SPIKE_STEPS - 1)
    assert told(steps) == []


def test_text_of_two_kinds_is_no_spike() -> None:
    random_ = random.Random(3)
    assert told([random_.gauss(3.0 if random_.random() < 0.15 else 1.0, 0.05) for _ in range(20_000)]) == []


def test_small_rise_is_no_spike_where_hardly_any_noise_is() -> None:
    assert told([*noise(3.0, 0.001, 200), *noise(3.1, 0.001, 200)]) == []
    assert told([*noise(3.0, 0.001, 200), *noise(3.3, 0.001, 200)]) == [(200 + SPIKE_STEPS - 1, True)]


def test_spike_that_ends_is_told_again_when_it_comes_again() -> None:
    calm, spike = noise(3.0, 0.05, 300), noise(5.0, 0.2, 50)
    changes = told([*calm, *spike, *calm, *spike])
    assert changes == [(304, True), (350 + BACK_STEPS - 1, False), (654, True)]


def test_a_few_steps_that_are_as_usual_do_not_end_a_spike() -> None:
    spike = [5.0 if i % BACK_STEPS else 3.0 for i in range(10 * BACK_STEPS)]
    assert told([*noise(3.0, 0.05, 300), 5.0, *spike[1:]]) == [(304, True)]


def test_plateau_becomes_the_new_level_and_is_told_only_once() -> None:
    changes = told([*noise(3.0, 0.05, 300), *noise(5.0, 0.05, 5 * LEVEL_STEPS)])
    assert changes == [(304, True), (304 + LEVEL_STEPS, False)]


def test_after_a_new_level_it_learns_anew_and_sees_the_next_spike() -> None:
    steps = [*noise(3.0, 0.05, 300), *noise(5.0, 0.05, LEVEL_STEPS + 2 * WINDOW_STEPS), *noise(8.0, 0.05, 10)]
    assert [is_on for _, is_on in told(steps)] == [True, False, True]


def test_nothing_is_known_just_after_a_restart() -> None:
    assert told([*noise(3.0, 0.05, KNOWN_STEPS - 1), *noise(9.0, 0.05, 3)]) == []
    assert told([*noise(3.0, 0.05, KNOWN_STEPS), *noise(9.0, 0.05, 9)]) == [(KNOWN_STEPS + SPIKE_STEPS - 1, True)]


def test_losses_that_are_no_numbers_neither_begin_nor_end_a_spike() -> None:
    watch = LossWatch()
    assert told([*noise(3.0, 0.05, 300), *[math.nan, math.inf] * 50], watch) == []
    assert told([9.0] * SPIKE_STEPS, watch) == [(SPIKE_STEPS - 1, True)]
    assert told([math.nan] * 100, watch) == []
    assert told([3.0] * BACK_STEPS, watch) == [(BACK_STEPS - 1, False)]


def test_negative_losses_of_own_modules_are_watched_too() -> None:
    assert told([*noise(-3.0, 0.05, 300), *noise(-1.0, 0.05, 20)]) == [(304, True)]


@dataclass
class Told:
    """A history whose events are seen."""

    def __post_init__(self) -> None:
        self.events = EventLog(None, level="error")
        self.journal = Journal(lambda: UnixTime(0.0))
        self.book = AlertBook(self.journal, self.events)
        self.history = SiteHistory(self.journal, self.events, lambda: 0, lambda idle: None, KillReader(0))

    def steps(self, losses: Iterable[float], phase: int) -> None:
        for i, loss in enumerate(losses, 1):
            self.history.note(StepReported(PhaseId(phase), i, i, loss, 8, 0.1, 0.0))


def test_the_alert_says_where_it_began_and_which_site_another_alert_names() -> None:
    site = Told()
    site.steps(noise(3.0, 0.05, 200), phase=11)
    site.journal.raise_alert(
        StandingAlert(code="contrary_contribution", severity="warning", text="D: left out", remedy="ask", since=0.0)
    )
    site.journal.phases.append(SiteSpan("phase", 0.0, 0.0, 10))
    site.steps(noise(6.0, 0.0, 50), phase=12)
    text = site.journal.alerts["loss_spike"].text
    assert text.startswith("the inner loss is 6 in place of ")
    assert "in 5 steps in a row since inner step 1 of phase 12 on round 10; the likely cause" in text
    assert text.endswith("(D: left out)")
    site.steps(noise(3.0, 0.05, 200), phase=13)
    assert not site.book.stands("loss_spike")
    assert [alert.code for alert in site.journal.past_alerts] == ["loss_spike"]
