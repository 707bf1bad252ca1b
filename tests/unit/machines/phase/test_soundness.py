"""What the phase machine makes of a shared state from which no inner step is finite (docs/adr/0031)."""

import pytest

from dilocoxd.config.agreement import Delay
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.soundness import Soundness, Spoiled
from dilocoxd.wire.local import outer_worker as local, trainer as local_trainer
from tests.unit.machines.phase.site_model import SiteModel
from tests.unit.machines.phase.test_machine import close_first_boundary, names, training_site


def step(inner_step: int, loss: float = 1.0, *, skipped: int = 0, phase: int = 0) -> local_trainer.StepDone:
    return local_trainer.StepDone(PhaseId(phase), inner_step, 0, loss, 8, 0.1, 0.0, skipped_steps=skipped)


BAD = local_trainer.NOT_FINITE


def taken(round_index: int, *, sound: int | None = None) -> Soundness:
    soundness = Soundness(sound=RoundIndex(sound) if sound is not None else None)
    soundness.took(RoundIndex(round_index), PhaseId(0), 0)
    return soundness


def test_first_steps_without_a_finite_loss_are_the_states_fault() -> None:
    soundness = taken(18, sound=17)
    told = [soundness.step(step(index, BAD), 100) for index in (1, 2, 3, 4)]
    assert told == [False, False, True, False], "said once"
    assert soundness.spoiled == Spoiled(RoundIndex(18), RoundIndex(17)) and soundness.spoiled.entries == "entry 17"


def test_a_gradient_that_is_not_finite_counts_as_well() -> None:
    soundness = taken(18)
    assert [soundness.step(step(index, 2.0, skipped=index), 100) for index in (1, 2, 3)] == [False, False, True]
    assert soundness.spoiled is not None and soundness.spoiled.entries == "entry 17 or one before it"


def test_phase_of_fewer_steps_is_enough() -> None:
    assert taken(18).step(step(1, BAD), 1)


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([1.0, BAD, BAD, BAD, BAD], "what breaks later is no matter of the state"),
        ([BAD, BAD, 1.0, BAD], "an overflow of a batch or two"),
    ],
)
def test_state_from_which_a_step_was_finite_is_sound(losses: list[float], why: str) -> None:
    soundness = taken(18, sound=17)
    assert not any(soundness.step(step(index, loss), 100) for index, loss in enumerate(losses, 1)), why
    assert soundness.spoiled is None and soundness.sound == 18


def test_steps_of_before_say_nothing_of_the_new_state() -> None:
    """Another rank tells them, so they may come after the word that the new state was taken."""
    soundness = Soundness()
    soundness.took(RoundIndex(18), PhaseId(5), 7)
    assert not soundness.step(step(7, phase=5), 100) and not soundness.step(step(40, phase=4), 100)
    assert [soundness.step(step(index, BAD, phase=5), 100) for index in (8, 9, 10)] == [False, False, True]


def test_state_of_nobodys_entry_is_the_trainers_matter() -> None:
    assert not any(taken(0).step(step(index, BAD), 100) for index in range(1, 20))


def test_what_was_broken_before_does_not_speak_against_a_state_that_is_merged_with_it() -> None:
    soundness = Soundness()
    soundness.step(step(1, BAD), 100)
    soundness.took(RoundIndex(18), PhaseId(0), 1, is_merged=True)
    assert not any(soundness.step(step(index, BAD), 100) for index in range(2, 9))
    soundness.took(RoundIndex(19), PhaseId(0), 8)
    assert [soundness.step(step(index, BAD), 100) for index in (9, 10, 11)] == [False, False, True]


def test_state_merged_while_the_one_before_is_doubted_is_one_more_suspect() -> None:
    soundness = taken(18, sound=17)
    soundness.step(step(1, BAD), 100)
    soundness.took(RoundIndex(19), PhaseId(0), 1, is_merged=True)
    assert soundness.is_doubted
    assert [soundness.step(step(index, BAD), 100) for index in (2, 3)] == [False, True]
    assert soundness.spoiled == Spoiled(RoundIndex(19), RoundIndex(17))


def test_what_was_broken_before_is_gone_with_a_state_that_is_taken_alone() -> None:
    soundness = taken(18, sound=17)
    for index in (1, 2, 3):
        soundness.step(step(index, BAD), 100)
    soundness.took(RoundIndex(19), PhaseId(0), 3)
    soundness.step(step(2, BAD), 100)  # of before, told late by another rank
    soundness.took(RoundIndex(19), PhaseId(1), 0, is_merged=True)
    assert [soundness.step(step(index, BAD, phase=1), 100) for index in (1, 2, 3)] == [False, False, True]


def test_skipped_steps_of_a_former_generation_do_not_count() -> None:
    soundness = taken(18)
    soundness.step(step(1, skipped=9), 100)
    soundness.begin()
    soundness.took(RoundIndex(18), PhaseId(1), 0)
    assert not soundness.step(step(1, skipped=0, phase=1), 100) and soundness.sound == 18


def trainer_says(site: SiteModel, losses: list[float]) -> None:
    assert site.trainer is not None
    for loss in losses:
        site.trainer.step += 1
        site.send(ev.TrainerSaid(site.generation, step(site.trainer.step, loss, phase=site.trainer.phase)))


def spoiled_site(delay: Delay) -> SiteModel:
    """Its trainers hold state 1, and found nothing finite in it."""
    site = training_site(delay, inner_steps=20)
    trainer_says(site, [1.0])
    site.load(1)
    site.settle_down()
    site.said.clear()
    trainer_says(site, [BAD, BAD, BAD])
    site.settle_down()
    return site


@pytest.mark.parametrize("delay", ["none", "phase", "arrival", "eager", "streaming"])
def test_trainers_wait_for_a_newer_state_and_take_it_at_once(delay: Delay) -> None:
    site = spoiled_site(delay)
    assert site.told == [cmd.TellSpoiled(Spoiled(RoundIndex(1), None))]
    assert names(site.said) == ["Pause"]
    assert site.machine.waiting_for.startswith("a newer shared state (entry 0 or one before it")
    site.said.clear()
    site.send(ev.EntryCommitted(site.order(), ev.CommittedEntry(RoundIndex(1), 0, 4, 0)))
    site.settle_down(until_due=True)
    assert names(site.said)[:2] == ["Resume", "TakeAnchor:replace"], "what it holds is spoiled"
    assert site.told[1:] == [cmd.TellTrains(RoundIndex(2))]
    assert site.machine.state.soundness.spoiled is None


@pytest.mark.parametrize("is_told_late", [False, True], ids=["one rank", "another rank tells steps"])
@pytest.mark.parametrize("inner_steps", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("delay", ["none", "phase", "arrival", "eager", "streaming"])
def test_trying_newer_states_gives_no_contributions(delay: Delay, inner_steps: int, *, is_told_late: bool) -> None:
    """Steps that were all skipped are nothing to offer: the entries of two sites that do were newer states for each
    other without end."""
    site = training_site(delay, inner_steps=inner_steps, extend_steps_max=0)
    site.buffers.is_step_told_late = is_told_late
    site.buffers.spoiled.update(range(2, 40))
    for _ in range(30):
        site.settle_down(until_due=True)
        site.commit(is_included=site.offered is not None)
    assert len(site.offers) <= 3, "what it was at, and what was on its way"
    assert site.machine.waiting_for.startswith("a newer shared state")
    assert not [offer for offer in site.offers if site.buffers.wasted.issuperset(site.formed[offer.phase][2])]


@pytest.mark.parametrize("extend_steps_max", [0, 2])
@pytest.mark.parametrize("delay", ["arrival", "streaming"])
def test_phase_with_finite_steps_grows_beyond_no_limit_for_a_state_that_came_late(
    delay: Delay, extend_steps_max: int
) -> None:
    """No sample is leased for a step beyond, so the trainers would die of it, and no entry may name such a claim."""
    site = training_site(delay, extend_steps_max=extend_steps_max)
    close_first_boundary(site)
    trainer, longest = site.trainer, 4 + extend_steps_max
    assert trainer is not None
    while trainer.step < longest - 1:
        trainer.run_once()
        site.settle_down()
    site.buffers.spoiled.update(range(1, 40))
    site.commit(is_included=True)
    site.settle_down()
    assert names(site.said)[-1].startswith("TakeAnchor:m"), "with one step left"
    site.settle_down(until_due=True)
    assert [(offer.phase, offer.inner_steps) for offer in site.offers[1:]] == [(1, longest)]
    assert site.machine.state.soundness.spoiled == Spoiled(RoundIndex(1), None), "the next phase tells"


def test_trainers_that_come_back_do_not_start_from_a_spoiled_state() -> None:
    site = spoiled_site("phase")
    site.lose_trainer()
    site.start_trainer()
    site.settle_down()
    assert not [message for message in site.said if isinstance(message, local_trainer.StartTraining)]
    assert site.machine.next_deadline() is None, "nobody is hung"
    site.send(ev.EntryCommitted(site.order(), ev.CommittedEntry(RoundIndex(1), 0, 4, 0)))
    site.settle_down(until_due=True)
    assert site.told[-1] == cmd.TellTrains(RoundIndex(2))


def test_pause_of_the_operator_outlives_a_newer_state() -> None:
    site = spoiled_site("phase")
    site.send(ev.PauseOrdered("disk is full"))
    site.send(ev.EntryCommitted(site.order(), ev.CommittedEntry(RoundIndex(1), 0, 4, 0)))
    site.settle_down()
    assert names(site.said) == ["Pause"]
    site.send(ev.ResumeOrdered())
    site.settle_down()
    assert names(site.said)[:3] == ["Pause", "Resume", "TakeAnchor:replace"]


@pytest.mark.parametrize("is_loaded", [False, True], ids=["while it loads", "behind it"])
def test_what_was_formed_before_an_entry_was_taken_back_is_owed_no_more_and_what_follows_is(*, is_loaded: bool) -> None:
    """A busy site hears of the taking back while it forms: what it had in its feedback came back with the fate of that
    contribution, and spoiled each entry that took the place (R29.7)."""
    site = training_site("phase")
    close_first_boundary(site)
    site.send(ev.LoadOrdered(site.order(), "0", forgets_feedback=True))
    if is_loaded:
        site.settle_down()
    for forgets in (True, False):
        site.abandon(is_voted=False)
        site.settle_down()
        settle = [request for request in site.outer_done if isinstance(request, local.Settle)][-1]
        assert (settle.is_included, settle.forgets) == (False, forgets)
        assert forgets is not any(site.machine.state.owed.feedback.values())
        while site.offered is None and forgets:
            assert site.trainer is not None
            site.trainer.run_once()
            site.settle_down()


@pytest.mark.parametrize(
    ("when", "delay"),
    [("closing", "phase"), ("closing", "eager"), *(("forming", delay) for delay in ("none", "phase", "arrival"))],
)
def test_what_is_formed_while_an_entry_is_taken_back_is_not_offered(when: str, delay: Delay) -> None:
    """It has all that the feedback owed of the lie. Others would name it in the very entry that takes the place, for it
    is there when they look for contributions (R29.7)."""
    site = training_site(delay)
    trainer = site.trainer
    assert trainer is not None
    while not any(isinstance(message, local_trainer.CloseBoundary) for message in trainer.inbox):
        trainer.run_once()
        while trainer.outbox:
            site.hear_trainer()
    if when == "forming":
        trainer.run_once()
        site.hear_trainer()
    site.send(ev.LoadOrdered(site.order(), "0", forgets_feedback=True))
    site.settle_down()
    assert not site.offers and site.settled == [(0, False)]
    assert not site.machine.state.owed.feedback and "taken back" in site.dropped[-1].reason
    site.settle_down(until_due=True)
    assert [offer.phase for offer in site.offers] == [1], "what is trained from then on is offered"
