"""The phase machine, case by case: what each delay does at a boundary, and what losses, recovery and leaving mean."""

import dataclasses

import pytest

from dilocoxd.config.agreement import Delay
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.settings import PhaseSettings, SavedFeedback
from dilocoxd.machines.phase.vocabulary import TrainerCommand
from dilocoxd.wire.local import outer_worker as local, trainer as local_trainer
from tests.unit.machines.phase.site_model import SiteModel, digest, state_ready


def training_site(delay: Delay, **changes: object) -> SiteModel:
    """A site at state 0 whose trainers train phase 0."""
    settings = dataclasses.replace(PhaseSettings(delay, 4, 2, 0, save_every_rounds=0), **changes)
    site = SiteModel(settings)
    site.train_from(0)
    assert site.machine.waiting_for == ""
    site.said.clear()
    return site


def names(messages: list[TrainerCommand]) -> list[str]:
    return [type(m).__name__ + (f":{m.how}" if isinstance(m, local_trainer.TakeAnchor) else "") for m in messages]


def close_first_boundary(site: SiteModel) -> None:
    """Phase 0 is offered; what follows waits for its fate."""
    while not site.offers:
        assert site.trainer is not None
        site.trainer.run_once()
        site.settle_down()
    assert [o.phase for o in site.offers] == [0]
    site.said.clear()


def test_none_waits_at_the_boundary_and_goes_on_from_the_result() -> None:
    site = training_site("none")
    close_first_boundary(site)
    assert site.machine.waiting_for == "the contribution of phase 0 to be committed"
    assert site.trainer is not None and site.trainer.mode == "waiting"
    site.commit(is_included=True)
    site.settle_down()
    assert site.settled == [(0, True)]
    assert names(site.said) == ["TakeAnchor:replace"]
    assert site.buffers.phase == ("base", 1)


def test_phase_takes_state_zero_again_after_phase_zero() -> None:
    """Boot rule, ALGORITHMS 1.3 (a): phase 1 starts from x_0, phase 2 from x_1, whatever was trained in between."""
    site = training_site("phase", extend_steps_max=0)
    bases = []
    for _ in range(4):
        site.settle_down(until_due=True)
        site.commit(is_included=True)
        site.settle_down()
    bases = [(o.phase, o.base_round) for o in site.offers]
    assert bases[:4] == [(0, 0), (1, 0), (2, 1), (3, 2)]


def test_phase_extends_up_to_the_limit_and_then_waits_with_a_reason() -> None:
    site = training_site("phase", extend_steps_max=2)
    close_first_boundary(site)
    assert names(site.said) == [], "phase 1 trains on"
    site.settle_down(until_due=True)
    assert site.machine.waiting_for == "the contribution of phase 0 to be committed"
    assert site.machine.state.trainer.present_phase.inner_step == 6
    site.commit(is_included=True)
    site.settle_down(until_due=True)
    assert site.offers[1].inner_steps == 6 and site.offers[1].tokens == 60


def test_extensions_come_in_pieces_so_that_a_late_entry_is_taken_soon() -> None:
    site = training_site("phase", inner_steps=100, extend_steps_max=12)
    site.settle_down(until_due=True)
    extends = [m.inner_steps for m in site.said if isinstance(m, local_trainer.Extend)]
    assert extends == [5, 5, 2]


def test_arrival_goes_on_and_merges_only_what_is_settled() -> None:
    site = training_site("arrival")
    close_first_boundary(site)
    site.commit(is_included=False)
    order = site.order()
    entry = ev.EntryCommitted(order, ev.CommittedEntry(RoundIndex(1), 0, 4, 0))
    site.send(entry)
    site.settle_down()
    assert names(site.said) == ["TakeAnchor:merge"]
    assert site.said[0].round == 2, "the newest anchor, not the one before it"
    assert site.settled == [(0, False)]
    assert site.buffers.phase == ("base", 2)


def test_arrival_does_not_merge_an_entry_that_decides_nothing_about_us() -> None:
    site = training_site("arrival")
    close_first_boundary(site)
    site.send(ev.EntryCommitted(site.order(), ev.CommittedEntry(RoundIndex(0), 0, 4, 0, settles=None)))
    site.settle_down()
    assert site.buffers.anchor == 1
    assert names(site.said) == [] and site.settled == []


@pytest.mark.parametrize(("is_included", "mixed"), [(True, 0), (False, None)])
def test_streaming_mixes_what_the_entry_with_our_contribution_moved(is_included: bool, mixed: int | None) -> None:
    site = training_site("streaming")
    close_first_boundary(site)
    site.commit(is_included=is_included)
    site.send(ev.EntryCommitted(site.order(), ev.CommittedEntry(RoundIndex(1), 0, 4, 0)))
    site.settle_down()
    (take,) = site.said
    assert isinstance(take, local_trainer.TakeAnchor)
    assert (take.how, take.round, take.mixed_round) == ("mix", 2, mixed)
    assert site.buffers.phase == ("base", 2)


def test_streaming_drops_its_own_progress_when_the_state_is_replaced() -> None:
    site = training_site("streaming")
    close_first_boundary(site)
    site.load(7)
    site.settle_down()
    assert names(site.said) == ["TakeAnchor:replace"]


def test_arrival_given_up_merges_the_unchanged_anchor() -> None:
    site = training_site("arrival")
    close_first_boundary(site)
    order, site.offered = site.order(), None
    site.send(ev.ContributionAbandoned(order, PhaseId(0)))
    site.settle_down()
    assert names(site.said) == ["TakeAnchor:merge"]
    assert site.settled == [(0, False)] and site.buffers.phase == ("base", 0)
    assert site.orders[order] == cmd.FinishOrder(order, None)


def test_a_contribution_is_settled_once_whatever_is_said_about_it_afterwards() -> None:
    site = training_site("phase")
    close_first_boundary(site)
    site.commit(is_included=True)
    order = site.order()
    site.send(ev.ContributionAbandoned(order, PhaseId(0)))
    assert site.orders[order] is None, "it ends when the settlement is done"
    site.send(ev.EntryCommitted(site.order(), ev.CommittedEntry(RoundIndex(1), 0, 4, 0, settles=PhaseId(0))))
    site.settle_down()
    assert site.settled == [(0, True)] and site.orders[order] is not None
    assert site.machine.state.record.last_settled == 0


def test_settle_comes_before_apply_of_the_same_round() -> None:
    site = training_site("arrival")
    close_first_boundary(site)
    site.commit(is_included=True)
    assert isinstance(site.outer_task and site.outer_task.request, local.Settle)
    site.run_outer()
    assert isinstance(site.outer_task and site.outer_task.request, local.ApplyResult)


def test_entries_out_of_order_are_refused() -> None:
    site = training_site("phase")
    for wrong in (1, 5):
        order = site.order()
        site.send(ev.EntryCommitted(order, ev.CommittedEntry(RoundIndex(wrong), 0, 4, 0)))
        answer = site.orders[order]
        assert isinstance(answer, cmd.RefuseOrder) and answer.kind == "out_of_order"


def test_trainer_lost_in_a_phase_abandons_it_but_not_the_contribution_in_flight() -> None:
    site = training_site("phase")
    close_first_boundary(site)
    site.lose_trainer()
    assert site.machine.waiting_for == "the trainers to start"
    site.start_trainer()
    site.settle_down()
    assert [m.phase for m in site.said if isinstance(m, local_trainer.StartTraining)] == [2], "1 is abandoned"
    site.commit(is_included=True)
    site.settle_down(until_due=True)
    assert site.settled == [(0, True)]
    assert [o.phase for o in site.offers] == [0, 2]


def test_trainer_that_dies_while_it_closes_offers_nothing() -> None:
    site = training_site("phase")
    assert site.trainer is not None
    while not site.trainer.inbox:
        if site.trainer.outbox:
            site.hear_trainer()
        else:
            site.trainer.run_once()
    assert isinstance(site.trainer.inbox[0], local_trainer.CloseBoundary)
    site.lose_trainer()
    assert site.buffers.phase == ("torn",)
    site.settle_down()
    assert site.offers == []
    site.start_trainer()
    site.settle_down(until_due=True)
    assert [o.phase for o in site.offers] == [2], "0 is torn, 1 was promised to the dead trainers"


def test_restarted_trainer_owes_no_merge_for_what_the_dead_one_closed() -> None:
    site = training_site("arrival")
    close_first_boundary(site)
    site.lose_trainer()
    site.start_trainer()
    site.settle_down()
    site.said.clear()
    site.commit(is_included=True)
    site.settle_down()
    assert names(site.said) == []
    assert site.buffers.phase == ("base", 0) and site.buffers.anchor == 1


def test_words_of_a_dead_generation_are_ignored() -> None:
    site = training_site("phase")
    site.lose_trainer()
    site.start_trainer()
    site.settle_down()
    phase = site.machine.state.trainer.present_phase.number
    site.send(ev.TrainerSaid(1, local_trainer.BoundaryDue(phase, 4)))
    site.send(ev.TrainerLost(1))
    assert site.machine.waiting_for == ""
    assert not [m for m in site.said if isinstance(m, local_trainer.CloseBoundary)]


def test_outer_worker_that_died_after_applying_is_not_asked_again() -> None:
    site = training_site("phase")
    order = site.commit(is_included=False)
    site.lose_outer(after_effect=True)
    assert site.machine.waiting_for == "the outer worker to start"
    site.start_outer()
    assert site.outer_task is None
    answer = site.orders[order]
    assert isinstance(answer, cmd.FinishOrder) and isinstance(answer.answer, local.StateReady)
    assert answer.answer.round == 1


def test_outer_worker_that_comes_back_with_other_bits_ends_the_site() -> None:
    site = training_site("phase")
    site.lose_outer(after_effect=False)
    site.outer_is_up = True
    site.send(ev.OuterStarted(dataclasses.replace(state_ready(0, 0), state_digest=digest(99))))
    assert "instead of state 0" in site.failure


def test_replaced_state_is_taken_in_mid_phase_and_only_later_steps_are_claimed() -> None:
    site = training_site("phase")
    assert site.trainer is not None
    site.trainer.run_once()
    site.trainer.run_once()
    site.load(7)
    site.settle_down()
    assert names(site.said) == ["TakeAnchor:replace"]
    site.settle_down(until_due=True)
    offer = site.offers[0]
    assert (offer.phase, offer.base_round, offer.inner_steps, offer.tokens) == (0, 7, 2, 20)


def test_state_replaced_at_the_boundary_leaves_nothing_to_offer() -> None:
    site = training_site("none")
    assert site.trainer is not None
    site.load(7)
    while site.trainer.mode == "training":
        site.trainer.run_once()
    site.settle_down()
    assert [d.phase for d in site.dropped] == [0] and site.offers == []
    site.settle_down(until_due=True)
    assert [(o.phase, o.base_round) for o in site.offers] == [(1, 7)], "the next phase is whole"


@pytest.mark.parametrize("delay", ["none", "phase", "arrival"])
def test_pseudo_gradient_that_is_not_finite_is_dropped_and_training_goes_on(delay: Delay) -> None:
    site = training_site(delay)
    while not isinstance(site.outer_task and site.outer_task.request, local.FormContribution):
        assert site.trainer is not None
        if site.trainer.outbox:
            site.hear_trainer()
        else:
            site.trainer.run_once()
    site.said.clear()
    task, site.outer_task = site.outer_task, None
    assert task is not None
    site.send(
        ev.OperationDone(
            task.number, local.ContributionFormed(task.number, PhaseId(0), False, "w", (), 0.0, 0.0, 0.0)
        )
    )  # fmt: skip
    site.settle_down(until_due=True)
    assert [d.phase for d in site.dropped] == [0] and "w" in site.dropped[0].reason
    expected = {"none": ["TakeAnchor:replace"], "arrival": ["TakeAnchor:replace"], "phase": []}[delay]
    assert [n for n in names(site.said) if n.startswith("TakeAnchor")] == expected
    assert [o.phase for o in site.offers] == [1]


def test_pause_stops_the_trainers_and_entries_still_come_in() -> None:
    site = training_site("arrival")
    close_first_boundary(site)
    site.send(ev.PauseOrdered("disk is full"))
    site.commit(is_included=True)
    site.settle_down(until_due=True)
    assert site.machine.waiting_for == "the end of a pause (disk is full)"
    assert site.buffers.anchor == 1 and names(site.said) == ["Pause"]
    assert site.machine.next_deadline() is None
    site.send(ev.ResumeOrdered())
    site.settle_down()
    assert names(site.said) == ["Pause", "Resume", "TakeAnchor:merge"]


def test_evaluation_follows_every_nth_state_and_holds_the_anchor() -> None:
    site = training_site("phase", evaluate_every_rounds=2)
    evaluated = []
    for _ in range(4):
        site.settle_down(until_due=True)
        site.commit(is_included=True)
        site.settle_down()
        evaluated = [m.round for m in site.said if isinstance(m, local_trainer.Evaluate)]
    assert evaluated == [2, 4]


def test_leaving_saves_the_feedback_under_the_last_settled_phase() -> None:
    site = training_site("phase")
    close_first_boundary(site)
    site.commit(is_included=True)
    site.settle_down()
    site.send(ev.LeaveOrdered())
    site.settle_down(until_due=True)
    assert site.has_left and names(site.said)[-1] == "StopTraining"
    assert site.saved == SavedFeedback(PhaseId(0), None, {}) and site.machine.state.record.last_settled == 0


def test_leaving_with_a_contribution_of_unknown_fate_saves_it_too() -> None:
    site = training_site("phase")
    close_first_boundary(site)
    site.commit(is_included=True)
    site.settle_down(until_due=True)
    assert site.offered == 1
    site.send(ev.LeaveOrdered())
    site.settle_down(until_due=True)
    assert site.has_left
    assert site.saved == SavedFeedback(PhaseId(0), PhaseId(1), {PhaseId(1): 1})


def test_leaving_while_a_boundary_is_closed_calls_no_trained_phase_empty() -> None:
    site = training_site("phase")
    assert site.trainer is not None
    while site.trainer.mode == "training":
        site.trainer.run_once()
    while site.trainer.outbox:
        site.hear_trainer()
    assert isinstance(site.trainer.inbox[-1], local_trainer.CloseBoundary)
    site.send(ev.LeaveOrdered())
    site.settle_down(until_due=True)
    assert site.has_left and site.offers == [] and site.dropped == []


def test_load_that_failed_leaves_no_state_until_another_succeeds() -> None:
    site = training_site("phase")
    order = site.load(7)
    task, site.outer_task = site.outer_task, None
    assert task is not None
    site.send(ev.OperationRefused(task.number, "corrupt_snapshot", "cut off"))
    assert isinstance(site.orders[order], cmd.RefuseOrder)
    site.settle_down(until_due=True)
    assert site.machine.waiting_for == "the shared state to be loaded"
    assert site.said[-1] == local_trainer.Extend(1)
    site.load(3)
    site.settle_down(until_due=True)
    assert "TakeAnchor:replace" in names(site.said) and site.offers[-1].base_round == 3


@pytest.mark.parametrize("kind", ["not_loaded", "store"])
def test_trainers_take_nothing_of_an_entry_that_was_half_applied(kind: str) -> None:
    """What cannot be read to the end leaves the anchor old and new; what failed before leaves it as it was."""
    site = training_site("phase")
    close_first_boundary(site)
    site.commit(is_included=True)
    while site.outer_task is None or not isinstance(site.outer_task.request, local.ApplyResult):
        site.run_outer()
    task, site.outer_task = site.outer_task, None
    site.send(ev.OperationRefused(task.number, kind, "Input/output error"))
    site.said.clear()
    site.settle_down(until_due=True)
    took = [name for name in names(site.said) if name.startswith("TakeAnchor") or name == "CloseBoundary"]
    assert bool(took) == (kind == "store")
    assert (site.machine.waiting_for == "the shared state to be loaded") == (kind == "not_loaded")
