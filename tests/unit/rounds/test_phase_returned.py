"""Work that a fork took out of the chain: it enters the error feedback once, survives restarts, leaves on return."""

from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.phase_returned import work_needed
from dilocoxd.wire import local
from tests.unit.rounds.site_model import SiteModel

PHASE = ev.PhaseSettings("arrival", 4, 2, 0)


def started(
    record: ev.SiteRecord,
    *,
    file: tuple[int, ...] | None = None,
    newest: int | None = None,
    own: tuple[int, ...] = (),
    height: int = 9,
    kept: tuple[int, ...] = (),
) -> SiteModel:
    """A daemon that starts with this record, this saved feedback, and these phases of ours in the chain."""
    site = SiteModel(PHASE, record=record)
    site.file = file
    site.start_outer()
    site.load(height)
    site.settle_down()
    site.begin(height, newest, own, kept)
    site.settle_down()
    return site


def site_gets(record: ev.SiteRecord, *, newest: int, own: tuple[int, ...]) -> list[tuple[int, bool]]:
    """(phase, withdrawn) of the ReturnWork of a start without saved feedback."""
    site = started(record, newest=newest, own=own)
    return [(r.phase, r.is_withdrawn) for r in site.outer_done if isinstance(r, local.ReturnWork)]


def with_rounds(count: int) -> SiteModel:
    """This many committed contributions; nothing is in flight, the trainers are gone."""
    site = started(ev.SiteRecord())
    site.start_trainer()
    for number in range(count):
        site.settle_down(until_due=True)
        if number == count - 1:
            site.lose_trainer()
        site.commit(is_included=True)
    site.settle_down()
    assert len(site.settled) == count and site.offered is None
    return site


def fly(site: SiteModel) -> None:
    """Bring a contribution on its way."""
    site.start_trainer()
    site.settle_down(until_due=True)
    site.lose_trainer()
    assert site.offered is not None


def pairs(*phases: int, carrier: int) -> tuple[tuple[PhaseId, PhaseId], ...]:
    return tuple((PhaseId(phase), PhaseId(carrier)) for phase in phases)


def test_dropped_work_enters_the_feedback_once_and_is_on_disk_before_the_log_changes() -> None:
    site = with_rounds(3)
    last = site.settled[-1][0]
    site.move(last, is_withdrawn=False)
    assert site.durable.returned == pairs(last, carrier=last + 1)
    site.move(last, is_withdrawn=False)
    assert work_needed(site.machine.state) == {last}, "nobody may drop what is kept of it before that"
    site.settle_down()
    assert site.books == {last}
    assert site.file == (last,), "the saved feedback has it too"
    assert work_needed(site.machine.state) == {last}, "that may not be restorable after a crash"
    fly(site)
    site.commit(is_included=True)
    site.settle_down()
    assert not work_needed(site.machine.state), "the next contribution took it along"


def test_the_entry_comes_back_with_a_later_fork_and_the_feedback_loses_it() -> None:
    site = with_rounds(3)
    last = site.settled[-1][0]
    site.move(last, is_withdrawn=False)
    site.settle_down()
    site.move(last, is_withdrawn=True)
    site.settle_down()
    assert (site.books, site.durable.returned, site.file) == (set(), (), ())


def test_what_is_still_in_flight_is_not_touched() -> None:
    site = with_rounds(2)
    fly(site)
    assert site.offered is not None
    site.move(site.offered, is_withdrawn=False)
    site.move(99, is_withdrawn=True)
    assert site.durable.returned == ()


def test_dropped_work_waits_until_what_is_in_flight_is_settled() -> None:
    site = with_rounds(2)
    fly(site)
    site.move(site.settled[0][0], is_withdrawn=False)
    site.settle_down()
    assert site.books == set()
    site.commit(is_included=True)
    site.settle_down()
    assert site.books == {site.settled[0][0]}


def given_up_after_our_vote() -> tuple[SiteModel, int, int]:
    """(site, its contribution, the order that ends when it is settled)."""
    site = with_rounds(2)
    fly(site)
    phase = site.offered
    assert phase is not None
    return site, phase, site.abandon(is_voted=True)


def test_what_was_given_up_after_our_vote_leaves_the_feedback_when_a_fork_brings_its_entry() -> None:
    site, phase, order = given_up_after_our_vote()
    assert site.durable.returned == pairs(phase, carrier=phase + 1), "durable before the feedback has it"
    site.settle_down()
    assert site.orders[order] is not None and site.books == {phase}
    site.move(phase, is_withdrawn=True)
    site.settle_down()
    assert (site.books, site.durable.returned) == (set(), ())


def test_its_entry_comes_before_it_is_settled() -> None:
    site, phase, _ = given_up_after_our_vote()
    site.move(phase, is_withdrawn=True)
    site.settle_down()
    assert (site.books, site.durable.returned) == (set(), ())


def test_what_was_given_up_before_any_vote_is_in_no_entry() -> None:
    site = with_rounds(2)
    fly(site)
    site.abandon(is_voted=False)
    site.settle_down()
    assert site.durable.returned == () and site.books == set()


def test_restart_with_feedback_that_was_saved_while_a_contribution_was_in_flight() -> None:
    record = ev.SiteRecord(9, PhaseId(3), PhaseId(3), PhaseId(4), PhaseId(4), RoundIndex(5))
    site = started(record, file=(), newest=3, own=(3,))
    assert site.books == {4} and site.durable.returned == pairs(4, carrier=5)
    site.move(4, is_withdrawn=True)
    site.settle_down()
    assert (site.books, site.durable.returned) == (set(), ())


def test_restart_before_the_feedback_had_it() -> None:
    record = ev.SiteRecord(9, PhaseId(6), PhaseId(6), returned=pairs(5, 6, carrier=7))
    site = started(record, file=(), newest=4, own=(3, 4))
    assert site.books == {5, 6}


def test_restart_when_the_saved_feedback_has_some_of_it() -> None:
    record = ev.SiteRecord(9, PhaseId(6), PhaseId(6), returned=pairs(5, 6, carrier=7))
    site = started(record, file=(5,), newest=4, own=(3, 4))
    assert site.books == {5, 6}


def test_restart_in_the_middle_of_the_rollback_leaves_what_is_still_in_the_chain() -> None:
    record = ev.SiteRecord(9, PhaseId(6), PhaseId(6), returned=pairs(5, 6, carrier=7))
    site = started(record, file=(), newest=5, own=(4, 5))
    assert site.books == {6}
    assert site.durable.returned == pairs(6, carrier=7)


def test_restart_after_the_entry_came_back_takes_it_out_of_the_saved_feedback() -> None:
    record = ev.SiteRecord(9, PhaseId(6), PhaseId(6), returned=pairs(6, carrier=7))
    site = started(record, file=(6,), newest=6, own=(5, 6))
    assert site.books == set()


def test_without_the_saved_feedback_only_work_that_nothing_can_have_carried_on_comes_back() -> None:
    unsaved = ev.SiteRecord(
        9, PhaseId(8), None, formed_phase=PhaseId(8), formed_with=(PhaseId(3),), returned=pairs(3, carrier=4)
    )
    assert site_gets(unsaved, newest=8, own=(8,)) == []
    fresh = ev.SiteRecord(9, PhaseId(6), None, formed_phase=PhaseId(6), returned=pairs(6, carrier=7))
    assert site_gets(fresh, newest=4, own=(4,)) == [(6, False)]


def test_without_the_saved_feedback_work_comes_back_whose_carrier_did_not_come_into_the_chain() -> None:
    record = ev.SiteRecord(
        9, PhaseId(8), None, formed_phase=PhaseId(8), formed_with=(PhaseId(3),), returned=pairs(3, carrier=4)
    )
    assert site_gets(record, newest=2, own=(2,)) == [(3, False)]


def test_a_carrier_that_a_fork_dropped_brings_back_what_it_took_along() -> None:
    record = ev.SiteRecord(
        9,
        PhaseId(8),
        None,
        formed_phase=PhaseId(8),
        formed_with=(PhaseId(3),),
        returned=pairs(3, carrier=4) + pairs(8, carrier=9),
    )
    assert site_gets(record, newest=2, own=(2,)) == [(8, False)]


def test_work_that_came_back_into_the_chain_leaves_what_its_carrier_brings_back() -> None:
    record = ev.SiteRecord(
        9,
        PhaseId(8),
        None,
        formed_phase=PhaseId(8),
        formed_with=(PhaseId(3),),
        carried_by=PhaseId(8),
        carried=(PhaseId(3),),
        returned=pairs(8, carrier=9),
    )
    assert site_gets(record, newest=3, own=(3,)) == [(3, True), (8, False)]


def test_saved_feedback_is_not_restored_when_a_later_contribution_is_owed_that_took_it_along() -> None:
    record = ev.SiteRecord(
        9, PhaseId(8), PhaseId(6), formed_phase=PhaseId(8), carried_by=PhaseId(8), returned=pairs(8, carrier=9)
    )
    site = started(record, file=(), newest=4, own=(4,))
    assert site.books == {8} and site.durable.saved_phase == 8, "saved again, with what came back"


def test_what_was_in_flight_at_a_crash_with_our_vote_is_owed_until_an_entry_names_it() -> None:
    record = ev.SiteRecord(9, PhaseId(6), PhaseId(6), formed_phase=PhaseId(7), formed_round=RoundIndex(5))
    site = started(record, file=(), newest=4, own=(4,), kept=(6, 7))
    assert site.books == {7} and site.durable.returned == pairs(7, carrier=8)
    site.move(7, is_withdrawn=True)
    site.settle_down()
    assert (site.books, site.durable.returned) == (set(), ())
    assert started(record, file=(), newest=4, own=(4,), kept=(6,)).books == set(), "nobody can have put it anywhere"


def test_kept_work_that_is_damaged_is_reported_and_not_asked_for_again() -> None:
    site = with_rounds(3)
    last = site.settled[-1][0]
    site.move(last, is_withdrawn=False)
    task = site.outer_task
    assert task is not None and isinstance(task.request, local.ReturnWork)
    site.outer_task = None
    site.send(ev.OperationRefused(task.number, "store", "damaged"))
    site.settle_down()
    assert site.durable.returned == () and site.books == set()
    assert "cannot be put back" in site.dropped[-1].reason


def test_leaving_saves_the_books() -> None:
    site = with_rounds(3)
    last = site.settled[-1][0]
    site.move(last, is_withdrawn=False)
    site.run_outer()
    site.send(ev.LeaveOrdered())
    site.settle_down(until_due=True)
    assert site.has_left and site.file == (last,)
