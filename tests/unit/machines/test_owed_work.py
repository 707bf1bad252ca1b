"""What is owed follows from chain, kept work and error feedback; and it is made good once, whatever comes between."""

from collections import Counter

import pytest

from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.owed_work import OwedWork
from dilocoxd.machines.phase.repayment import work_needed
from dilocoxd.machines.phase.settings import PhaseSettings, SavedFeedback, SiteRecord
from dilocoxd.wire.local import outer_worker as local
from tests.unit.machines.phase.site_model import SiteModel

PHASE = PhaseSettings("arrival", 4, 2, 0)


def owed_of(
    chain: tuple[int, ...], kept: dict[int, tuple[int, ...]], feedback: dict[int, int] | None = None
) -> dict[int, int]:
    """`kept`: phase -> its content."""
    owed, held = OwedWork(), {PhaseId(phase): times for phase, times in (feedback or {}).items()}
    contents = {PhaseId(phase): dict.fromkeys(map(PhaseId, carried), 1) for phase, carried in kept.items()}
    owed.begin(map(PhaseId, chain), contents)
    owed.add(held, 1)
    found = owed.difference(owed.feedback)
    assert owed.needed([owed.feedback]) == found.keys()
    return {int(phase): times for phase, times in found.items()}


# --- OwedWork alone


@pytest.mark.parametrize(
    ("chain", "kept", "feedback", "owed"),
    [
        ((1, 2), {1: (1,), 2: (2,)}, {}, {}),
        ((1,), {1: (1,), 2: (2,)}, {}, {2: 1}),
        ((1,), {1: (1,), 2: (2,)}, {2: 1}, {}),
        ((1, 2), {1: (1,), 2: (2,)}, {2: 1}, {2: -1}),
        ((3,), {2: (2,), 3: (2, 3)}, {}, {}),
        ((), {2: (2,), 3: (2, 3)}, {}, {3: 1}),
        ((2,), {2: (2,), 3: (2, 3)}, {}, {2: -1, 3: 1}),
        ((2, 3), {2: (2,), 3: (2, 3)}, {}, {2: -1}),
        ((7,), {}, {8: 1}, {}),
    ],
    ids=[
        "all is delivered",
        "a fork dropped it",
        "and FEEDBACK has it",
        "its entry came back",
        "a later one carried it on",
        "a fork dropped the carrier: it brings both",
        "a fork dropped the carrier and brought the first back",
        "the first came back and the carrier stayed",
        "what was never kept is left where it is",
    ],
)
def test_owed_is_what_no_entry_has_and_the_feedback_does_not_hold(
    chain: tuple[int, ...], kept: dict[int, tuple[int, ...]], feedback: dict[int, int], owed: dict[int, int]
) -> None:
    assert owed_of(chain, kept, feedback) == owed


def test_moves_are_news_once() -> None:
    owed = OwedWork()
    owed.begin([PhaseId(1)], {})
    assert owed.move(PhaseId(1), is_withdrawn=False) and not owed.move(PhaseId(1), is_withdrawn=False)
    assert owed.move(PhaseId(1), is_withdrawn=True) and not owed.move(PhaseId(1), is_withdrawn=True)
    assert owed.chain == {1}


# --- in the machine


def started(
    saved: SavedFeedback | None = None,
    *,
    contents: dict[int, tuple[int, ...]],
    chain: tuple[int, ...] = (),
    kept: tuple[int, ...] = (),
    settings: PhaseSettings = PHASE,
) -> SiteModel:
    """A daemon that starts with this feedback file, these phases of ours in the chain, and this kept work."""
    site = SiteModel(settings, record=SiteRecord(9, PhaseId(6)))
    site.saved, site.contents = saved, {phase: Counter(content) for phase, content in contents.items()}
    site.start_outer()
    site.load(9)
    site.settle_down()
    site.begin(chain, kept)
    site.settle_down()
    return site


def saved_at(phase: int, *content: int, in_flight: int | None = None) -> SavedFeedback:
    flying = PhaseId(in_flight) if in_flight is not None else None
    return SavedFeedback(PhaseId(phase), flying, dict.fromkeys(map(PhaseId, content), 1))


def with_rounds(count: int) -> SiteModel:
    """This many committed contributions; nothing is in flight, the trainers are gone."""
    site = SiteModel(PHASE)
    site.start_outer()
    site.load(0)
    site.settle_down()
    site.begin()
    site.start_trainer()
    for number in range(count):
        site.settle_down(until_due=True)
        if number == count - 1:
            site.lose_trainer()
        site.commit(is_included=True)
    site.settle_down()
    assert len(site.settled) == count and site.offered is None
    return site


def fly(site: SiteModel) -> int:
    """Bring a contribution on its way."""
    site.start_trainer()
    site.settle_down(until_due=True)
    site.lose_trainer()
    assert site.offered is not None
    return site.offered


def test_dropped_work_enters_the_feedback_once_and_stays_kept_until_it_is_carried_on() -> None:
    site = with_rounds(3)
    last = site.settled[-1][0]
    site.move(last, is_withdrawn=False)
    site.move(last, is_withdrawn=False)
    assert work_needed(site.machine.state) == {last}, "nobody may drop what is kept of it before that"
    site.settle_down()
    assert site.held == {last: 1}
    assert site.saved is not None and site.saved.content == {last: 1}, "the feedback file has it too"
    assert work_needed(site.machine.state) == {last}, "that may not be restorable after a crash"
    fly(site)
    site.commit(is_included=True)
    site.settle_down()
    assert site.counted()[last] == 1
    assert last not in site.machine.state.owed.difference({}), "the next contribution took it along"


def test_the_entry_comes_back_with_a_later_fork_and_the_feedback_loses_it() -> None:
    site = with_rounds(3)
    last = site.settled[-1][0]
    site.move(last, is_withdrawn=False)
    site.settle_down()
    site.move(last, is_withdrawn=True)
    site.settle_down()
    assert site.held == {} and site.saved is not None and site.saved.content == {}


def test_what_is_still_in_flight_is_not_touched() -> None:
    site = with_rounds(2)
    flying = fly(site)
    site.send(ev.WorkMoved(site.order(), PhaseId(flying), is_withdrawn=False))
    assert site.orders[len(site.orders) - 1] == cmd.FinishOrder(len(site.orders) - 1, None)
    site.settle_down()
    assert site.held == {flying: 1}


def test_dropped_work_waits_until_what_is_in_flight_is_settled() -> None:
    site = with_rounds(2)
    flying, first = fly(site), site.settled[0][0]
    site.move(first, is_withdrawn=False)
    site.settle_down()
    assert site.held == {flying: 1}
    site.commit(is_included=True)
    site.settle_down()
    assert site.held == {first: 1}


def given_up_after_our_vote() -> tuple[SiteModel, int, int]:
    """(site, its contribution, the order that ends when it is settled)."""
    site = with_rounds(2)
    phase = fly(site)
    return site, phase, site.abandon(is_voted=True)


def test_what_was_given_up_after_our_vote_leaves_the_feedback_when_a_fork_brings_its_entry() -> None:
    site, phase, order = given_up_after_our_vote()
    site.settle_down()
    assert site.orders[order] is not None and site.held == {phase: 1}
    site.move(phase, is_withdrawn=True)
    site.settle_down()
    assert site.held == {}


def test_its_entry_comes_before_it_is_settled() -> None:
    site, phase, _ = given_up_after_our_vote()
    site.move(phase, is_withdrawn=True)
    site.settle_down()
    assert site.held == {}


def test_with_streaming_the_trainers_have_what_was_given_up_and_its_kept_work_is_forgotten() -> None:
    settings = PhaseSettings("streaming", 4, 2, 0)
    site = started(settings=settings, contents={6: (6,), 7: (7,)}, chain=(6,), kept=(6, 7))
    assert site.forgotten == [7] and site.held == {}, "it was in flight at the crash"
    phase = fly(site)
    site.abandon(is_voted=True)
    site.settle_down()
    assert site.forgotten == [7, phase] and site.held == {}


# --- a start


def test_without_a_feedback_file_kept_work_that_no_entry_has_comes_back() -> None:
    site = started(contents={4: (4,), 6: (6,)}, chain=(4,), kept=(4, 6))
    assert site.held == {6: 1} and site.counted() == {4: 1, 6: 1}


def test_without_a_feedback_file_work_that_was_carried_on_does_not_come_back() -> None:
    site = started(contents={3: (3,), 8: (3, 8)}, chain=(8,), kept=(3, 8))
    assert site.held == {} and not [r for r in site.outer_done if isinstance(r, local.ReturnWork)]


def test_a_carrier_that_a_fork_dropped_brings_back_what_it_took_along() -> None:
    site = started(contents={3: (3,), 8: (3, 8)}, chain=(), kept=(3, 8))
    assert [(r.phase, r.is_withdrawn) for r in site.outer_done if isinstance(r, local.ReturnWork)] == [(8, False)]
    assert site.held == {3: 1, 8: 1}


def test_work_that_came_back_into_the_chain_leaves_what_its_carrier_brings_back() -> None:
    site = started(contents={3: (3,), 8: (3, 8)}, chain=(3,), kept=(3, 8))
    assert [(r.phase, r.is_withdrawn) for r in site.outer_done if isinstance(r, local.ReturnWork)] == [
        (3, True),
        (8, False),
    ]
    assert site.held == {8: 1}


@pytest.mark.parametrize("content", [(), (5,), (5, 6)])
def test_restored_feedback_gets_what_it_does_not_have(content: tuple[int, ...]) -> None:
    site = started(saved_at(6, *content), contents={5: (5,), 6: (6,)}, chain=(4,), kept=(5, 6))
    assert site.held == {5: 1, 6: 1}


def test_restored_feedback_loses_what_the_chain_has_again() -> None:
    site = started(saved_at(6, 6), contents={5: (5,), 6: (6,)}, chain=(5, 6), kept=(5, 6))
    assert site.held == {}


def test_what_was_in_flight_at_a_crash_with_our_vote_is_owed_until_an_entry_names_it() -> None:
    site = started(saved_at(6), contents={7: (7,)}, chain=(4,), kept=(7,))
    assert site.held == {7: 1} and site.durable.last_settled == 7
    site.move(7, is_withdrawn=True)
    site.settle_down()
    assert site.held == {}
    assert started(saved_at(6), contents={7: (7,)}, chain=(4,)).held == {}, "nobody can have put it anywhere"


def test_kept_work_that_is_damaged_is_reported_and_not_asked_for_again() -> None:
    site = with_rounds(3)
    site.move(site.settled[-1][0], is_withdrawn=False)
    task = site.outer_task
    assert task is not None and isinstance(task.request, local.ReturnWork)
    site.outer_task = None
    site.send(ev.OperationRefused(task.number, "store", "damaged"))
    site.settle_down()
    assert site.held == {} and site.machine.state.owed.difference({}) == {}
    assert "cannot be put back" in site.dropped[-1].reason


def test_leaving_saves_what_the_feedback_holds() -> None:
    site = with_rounds(3)
    last = site.settled[-1][0]
    site.move(last, is_withdrawn=False)
    site.run_outer()
    site.send(ev.LeaveOrdered())
    site.settle_down(until_due=True)
    assert site.has_left and site.saved is not None and site.saved.content == {last: 1}
