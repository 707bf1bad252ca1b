"""When silence of the trainers is a hang: they owe something, and it lasts longer than what was measured before."""

from dilocoxd.machines.phase import inputs as ev
from dilocoxd.wire.local import worker as local_worker
from tests.unit.machines.phase.test_machine import training_site


def test_silent_trainers_are_restarted_only_if_they_owe_something() -> None:
    site = training_site("none", silence_min_s=50.0)
    deadline = site.machine.next_deadline()
    assert deadline == 50.0
    site.now = 49.0
    site.send(ev.PhaseDeadlineReached())
    assert site.trainer is not None
    site.now = 50.0
    site.send(ev.PhaseDeadlineReached())
    assert site.trainer is None
    site.start_trainer()
    site.settle_down(until_due=True)
    assert site.trainer is not None and site.trainer.mode == "waiting"
    assert site.machine.next_deadline() is None, "it is they who wait"


def test_silence_is_measured_by_the_silences_that_were_none() -> None:
    """Eight times too much to do: signs of a validation come 100 s apart, and no step was done yet."""
    site = training_site("none", silence_min_s=120.0)
    site.now = 100.0
    site.send(ev.TrainerSaid(1, local_worker.WorkerAlive("evaluate", 100)))
    assert site.machine.next_deadline() == 500.0, "four times as long as it took before"
    site.now = 400.0
    site.send(ev.PhaseDeadlineReached())
    assert site.trainer is not None
    site.send(ev.TrainerSaid(1, local_worker.WorkerAlive("", 0)))
    site.now = 401.0
    site.send(ev.TrainerSaid(1, local_worker.WorkerAlive("", 0)))
    assert site.machine.next_deadline() == 401.0 + 4 * 300.0
    site.now = 401.0 + 4 * 300.0
    site.send(ev.PhaseDeadlineReached())
    assert site.trainer is None, "a hang is found all the same"


def test_waiting_for_others_is_no_measure_of_silence() -> None:
    site = training_site("none", silence_min_s=50.0)
    site.settle_down(until_due=True)
    assert site.trainer is not None and site.trainer.mode == "waiting"
    site.now += 1000.0
    site.commit(is_included=True)
    site.settle_down()
    deadline = site.machine.next_deadline()
    assert deadline is not None and deadline <= site.now + 50.0


def test_silence_does_not_count_while_we_stood_still_ourselves() -> None:
    site = training_site("none", silence_min_s=50.0)
    site.now = 200.0
    site.send(ev.TimeLost(150.0))
    site.send(ev.PhaseDeadlineReached())
    assert site.trainer is None, "50 s of silence are real"
    site = training_site("none", silence_min_s=50.0)
    site.now = 200.0
    site.send(ev.TimeLost(160.0))
    assert site.machine.next_deadline() == 210.0
