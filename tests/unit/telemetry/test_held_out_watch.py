"""Who makes the held-out loss worse is named after three looks; noise, and a time when nobody helps, name nobody."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from dilocoxd import describe
from dilocoxd.answers.rounds import Contributor, RoundRow
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import unwatched
from dilocoxd.daemon.site.interface import ContributionLeftOut, SiteEvent
from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.ids import RoundIndex
from dilocoxd.telemetry.held_out_watch import LOOKS, PART, SITES_MAX, HeldOutWatch
from dilocoxd.trainer.data.held_out import BatchLosses, compared
from dilocoxd.trainer.data.targets import NOT_TRAINED
from dilocoxd.wire.local.trainer import Evaluated, LeftOut
from tests.unit.library.test_describe import manifest_of
from tests.unit.telemetry.test_loss_watch import Told

HELP, NOISE = -0.01, 0.002
"""What an honest contribution does to the loss, and how much one look errs."""


def looks(watch: HeldOutWatch, effects: dict[str, float], rounds: int, seed: int = 1) -> set[str]:
    """Who is named in so many looks at each, in an order that is drawn."""
    draw, named = random.Random(seed), set()
    for _ in range(rounds):
        for peer in draw.sample(sorted(effects), len(effects)):
            if watch.note(peer, draw.gauss(effects[peer], NOISE), NOISE):
                named.add(peer)
    return named


def test_who_undoes_what_others_learn_is_named() -> None:
    assert looks(HeldOutWatch(), dict.fromkeys("abc", HELP) | {"liar": -HELP}, 4) == {"liar"}


def test_not_before_the_third_look_and_not_without_others_to_compare_with() -> None:
    watch = HeldOutWatch()
    assert not any(watch.note("liar", 1.0, 0.0) for _ in range(10))
    for _ in range(2):
        watch.note("a", HELP, 0.0)
        assert not watch.note("liar", 1.0, 0.0)
    watch.note("a", HELP, 0.0)
    assert watch.note("liar", 1.0, 0.0)
    assert not watch.note("liar", HELP, 0.0)
    assert [watch.note("liar", 1.0, 0.0) for _ in range(LOOKS)] == [False, False, True]


def test_honest_sites_late_in_training_are_not_named() -> None:
    """A contribution helps by less than one look errs (SCALE.md, section 4)."""
    for seed in range(20):
        assert not looks(HeldOutWatch(), dict.fromkeys("abcd", -NOISE / 2), 100, seed)


def test_nobody_is_named_where_nobody_helps() -> None:
    assert not looks(HeldOutWatch(), dict.fromkeys("abcd", 0.01), 10)


def test_more_than_noise_and_more_than_a_quarter_of_what_others_do_is_asked_for() -> None:
    watch = HeldOutWatch()
    for peer in ("a", "d"):
        seen = [watch.note(peer, HELP if peer == "a" else -PART * 0.9 * HELP, 0.0) for _ in range(LOOKS)]
    assert not any(seen)
    assert not looks(HeldOutWatch(), dict.fromkeys("abc", HELP) | {"d": 0.1 * -HELP}, 20)
    watch = HeldOutWatch()
    for _ in range(LOOKS):
        watch.note("a", HELP, 0.0)
    assert not any(watch.note("d", 1.0, 0.6) for _ in range(LOOKS)), "one look errs by 0.6"


def test_invented_sites_are_forgotten_the_oldest_first() -> None:
    watch = HeldOutWatch()
    for number in range(SITES_MAX + 5):
        watch.note(f"s{number}", 1.0, 0.0)
    assert len(watch._looks) == SITES_MAX
    assert "s4" not in watch._looks


# --- from the batches to the alert ------------------------------------------------------------------------------------


def batches(*losses: float, counted: Sequence[int] = ()) -> BatchLosses:
    """`counted`: of four targets of each batch; all."""
    targets = []
    for number in counted or [4] * len(losses):
        row = torch.full((1, 4), NOT_TRAINED)
        row[0, :number] = 1
        targets.append(row)
    told = [loss * number / 4 for loss, number in zip(losses, counted or [4] * len(losses), strict=True)]
    return BatchLosses.of(told, [(one, one) for one in targets])


def test_the_same_batches_are_compared() -> None:
    (found,) = compared(2, [batches(1.0, 5.0, 9.0)], [batches(0.9, 4.8, 8.7)])
    assert (found.place, pytest.approx(0.2), pytest.approx(0.1 / 3**0.5)) == (2, found.added, found.deviation)
    (single,) = compared(0, [batches(1.0)], [batches(1.5)])
    assert (single.added, single.deviation) == (-0.5, 0.0)


def test_what_does_not_count_does_not_weigh() -> None:
    whole, without = batches(1.0, 3.0, 7.0, counted=[4, 2, 0]), batches(1.0, 6.0, 0.0, counted=[4, 2, 0])
    assert whole.mean == (pytest.approx((4 * 1.0 + 2 * 3.0) / 6), 6)
    (found,) = compared(0, [whole, batches(2.0)], [without, batches(2.0)])
    assert found.added == pytest.approx((4 * 0.0 + 2 * -3.0 + 4 * 0.0) / 10)


def test_losses_that_are_no_numbers_say_nothing() -> None:
    assert compared(0, [batches(float("nan"), 1.0)], [batches(1.0, 1.0)]) == ()
    assert compared(0, [batches(float("inf"))], [batches(1.0)]) == ()
    assert compared(0, [batches(1e38)], [batches(-1e38)]) == ()
    assert compared(0, [], []) == ()


def told_by(note: Callable[[SiteEvent], None], round_index: int, place: int, added: float) -> None:
    """A trainer says so."""
    message = Evaluated(RoundIndex(round_index), 3.0, 0.1, (), (LeftOut(place, added, 0.0),))
    for event in SiteProgress().told_by(message):
        note(event)


def test_the_alert_names_the_site_that_the_entry_names() -> None:
    site, events = Told(), list[str]()
    site.events.listen(lambda record: events.append(str(record["event"])))
    for number in range(9):
        names = ("Qma", "Qmb") if number % 2 else ("Qma", "Qmb", "Qmliar")
        those = (Contributor(peer=name, phase=number, inner_steps=1, tokens=1, base_round=0) for name in names)
        site.journal.keep(RoundRow(round=number, contributors=tuple(those)))
    for state in (1, 2, 3, 4):
        told_by(site.history.note, state, 0, HELP)
    told_by(site.history.note, 2, 2, 1.0)  # entry 1 has two contributions: it was taken back and made anew meanwhile
    for state in (1, 3, 5):
        assert not site.book.stands("harmful_contribution")
        told_by(site.history.note, state, 2, 0.25)
    text = site.journal.alerts["harmful_contribution"].text
    assert text == "Qmliar: added 0.25 to the validation loss in entry 4"
    assert events.count("contribution.measured") == 7
    assert events.count("contribution.harmful") == 1


def test_what_a_trainer_measured_of_one_contribution_comes_after_the_loss() -> None:
    seen: list[SiteEvent] = []
    told_by(seen.append, 7, 1, 0.5)
    assert isinstance(seen[-1], ContributionLeftOut)
    assert (len(seen), seen[-1].round, seen[-1].measured.place) == (3, 7, 1)


def test_a_loop_of_ones_own_is_unwatched_once_it_has_told_too_few_losses(tmp_path: Path) -> None:
    """The status said so from the start to the first look, hours later, of a loop that does all that it should."""
    describe(torch.nn.Linear(2, 3), tmp_path)
    manifest, site = manifest_of(tmp_path), Told()

    def says() -> str:
        return unwatched(manifest, SiteConfig(), site.journal.losses_told)

    assert says() == "", "nobody knows yet"
    for number, is_unwatched in ((1, True), (2, False), (0, True)):
        for event in SiteProgress().told_by(Evaluated(RoundIndex(1), 3.0, 0.1, (), (), number)):
            site.history.note(event)
        assert bool(says()) == is_unwatched
    assert "let the `evaluate` of dilocoxd.Site return a list" in says()
    assert unwatched(manifest, SiteConfig()), "before the start it is a warning"
