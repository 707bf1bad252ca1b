"""Random schedules of the phase machine: no order of events breaks an invariant, and training always goes on after."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from dilocoxd.config.agreement import Delay
from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.machines.phase.inputs import LeaveOrdered, PauseOrdered, ResumeOrdered
from dilocoxd.machines.phase.settings import PhaseSettings
from dilocoxd.machines.reading.volumes import ALL_VOLUMES, HeldVolumes, volume_of
from dilocoxd.wire.local import outer_worker as local
from tests.unit.machines.phase.site_model import SiteModel

DELAYS: tuple[Delay, ...] = ("none", "phase", "arrival", "streaming")
ACTIONS = (
    ("step", 30), ("read", 30), ("hear", 30), ("outer", 30), ("commit", 6), ("exclude", 2), ("abandon", 2),
    ("abandon_voted", 2), ("lose_trainer", 1), ("start_trainer", 6), ("lose_outer", 1), ("lose_outer_late", 1),
    ("start_outer", 10), ("load", 1), ("pause", 1), ("resume", 4), ("fork", 2), ("unfork", 1),
    ("spoil", 1),
)  # fmt: skip


def act(site: SiteModel, action: str) -> None:
    """Carry `action` out if it is possible now."""
    trainer, task = site.trainer, site.outer_task
    is_loaded = site.machine.state.expected is not None
    match action:
        case "step" | "read" if trainer is not None and trainer.can_step():
            trainer.run_once()
        case "hear" if trainer is not None and trainer.outbox:
            site.hear_trainer()
        case "outer" if task is not None:
            site.run_outer()
        case "commit" if is_loaded:
            site.commit(is_included=True)
        case "exclude" if is_loaded:
            site.commit(is_included=False)
        case "abandon" | "abandon_voted" if site.offered is not None:
            site.abandon(is_voted=action == "abandon_voted")
        case "lose_trainer" if trainer is not None:
            site.lose_trainer()
        case "start_trainer" if trainer is None:
            site.start_trainer()
        case "lose_outer" if site.outer_is_up:
            site.lose_outer(after_effect=False)
        case "lose_outer_late" if site.outer_is_up:
            site.lose_outer(after_effect=not isinstance(task and task.request, local.LoadState))
        case "start_outer" if not site.outer_is_up:
            site.start_outer()
        case "load" if is_loaded:
            site.load(site.machine.state.expected + 3)
        case "fork" if site.settled:
            phase, is_included = site.settled[-1]
            if is_included:
                site.dropped_by_fork.add(phase)
                site.move(phase, is_withdrawn=False)
        case "unfork" if site.dropped_by_fork:
            site.move(site.dropped_by_fork.pop(), is_withdrawn=True)
        case "spoil":
            site.buffers.spoiled.add((site.buffers.anchor or 0) + 1)
        case "pause":
            site.send(PauseOrdered("test"))
        case "resume":
            site.send(ResumeOrdered())


def calm_down(site: SiteModel) -> None:
    """No more faults: a state that comes now is sound, everybody is up, every offered contribution commits. Three
    further phases must come through."""
    site.send(ResumeOrdered())
    if not site.outer_is_up:
        site.start_outer()
    if site.trainer is None:
        site.start_trainer()
    offers = len(site.offers)
    for _ in range(40):
        site.settle_down(until_due=True)
        if len(site.offers) >= offers + 3:
            return
        if site.machine.state.soundness.spoiled is not None:
            site.commit(is_included=False)  # of others, whose next state is sound
            continue
        assert site.offered is not None, f"stuck: {site.machine.waiting_for}"
        site.commit(is_included=True)
    raise AssertionError(f"no phase comes through: {site.machine.waiting_for}")


def check_history(site: SiteModel) -> None:
    """What must hold at the end of every history."""
    assert not site.failure
    assert not site.machine.state.owed.difference(site.held), "FEEDBACK does not have what it must"
    assert site.machine.state.owed.feedback == site.held, "the machine is wrong about FEEDBACK"
    total = site.counted()
    assert all(times in (0, 1) for times in total.values()), "work counts twice"
    assert all(total[phase] == 1 for phase in site.chain | site.dropped_by_fork), "work is lost"
    settled = [phase for phase, _ in site.settled]
    assert settled == sorted(set(settled))
    offered = [offer.phase for offer in site.offers]
    assert offered == sorted(set(offered))
    units = [unit for phase in offered for unit in site.formed[phase][2]]
    assert len(units) == len(set(units)), "a step's progress was offered twice"
    for offer in site.offers:
        assert offer.inner_steps == len(site.formed[offer.phase][2]), "claims more than it trained"
        assert offer.tokens == 10 * offer.inner_steps
        longest = site.settings.inner_steps + site.settings.extend_steps_max
        assert offer.inner_steps <= longest, "claims more than the manifest allows: no entry may name it"
        assert not site.buffers.wasted.issuperset(site.formed[offer.phase][2]), "offers steps that were all skipped"


def new_site(delay: Delay, *, extend: int = 3, volumes: HeldVolumes = ALL_VOLUMES) -> SiteModel:
    site = SiteModel(PhaseSettings(delay, 4, extend, 2, volumes=volumes))
    site.start_outer()
    site.load(0)
    site.settle_down()
    site.begin()
    return site


def run_schedule(site: SiteModel, rng: random.Random, length: int) -> None:
    names, weights = zip(*ACTIONS, strict=True)
    for action in rng.choices(names, weights, k=length):
        act(site, action)
    calm_down(site)
    check_history(site)


@settings(max_examples=150, deadline=None)
@given(delay=st.sampled_from(DELAYS), actions=st.lists(st.sampled_from([name for name, _ in ACTIONS]), max_size=120))
def test_any_order_of_events_keeps_the_invariants(delay: Delay, actions: list[str]) -> None:
    site = new_site(delay)
    for action in actions:
        act(site, action)
    calm_down(site)
    check_history(site)


@pytest.mark.parametrize("delay", DELAYS)
def test_only_phases_of_volumes_that_are_here_begin(delay: Delay) -> None:
    volumes = HeldVolumes(PeerId("me"), 5, {1, 3})
    read = set()
    for seed in range(20):
        site = new_site(delay, extend=seed % 5, volumes=volumes)
        run_schedule(site, random.Random(seed), 400)
        read |= {volume_of(volumes.peer, PhaseId(phase), 5) for phase in site.formed}
    assert read == {1, 3}


@pytest.mark.parametrize("delay", DELAYS)
def test_long_weighted_schedules(delay: Delay) -> None:
    for seed in range(150):
        try:
            site = new_site(delay, extend=seed % 5)
            site.buffers.is_step_told_late = seed % 2 == 1
            run_schedule(site, random.Random(seed), 400)
        except AssertionError as error:
            raise AssertionError(f"delay {delay}, seed {seed}: {error}") from error


@pytest.mark.parametrize("delay", DELAYS)
def test_leaving_in_any_state_comes_to_an_end(delay: Delay) -> None:
    names, weights = zip(*ACTIONS, strict=True)
    for seed in range(100):
        rng = random.Random(seed)
        site = new_site(delay)
        for action in rng.choices(names, weights, k=rng.randrange(200)):
            act(site, action)
        site.send(LeaveOrdered())
        if not site.outer_is_up:
            site.start_outer()
        site.settle_down(until_due=True)
        assert site.has_left, f"delay {delay}, seed {seed}: {site.machine.waiting_for}"
        if site.offered is None and site.settled:
            assert site.saved is not None and site.saved.phase == site.machine.state.record.last_settled


@pytest.mark.parametrize("delay", DELAYS)
def test_after_a_crash_of_the_daemon_no_phase_number_comes_again(delay: Delay) -> None:
    used: list[int] = []
    rng = random.Random(7)
    site = new_site(delay)
    names, weights = zip(*ACTIONS, strict=True)
    for _ in range(30):
        for action in rng.choices(names, weights, k=60):
            act(site, action)
        assert not set(used) & set(site.started)
        used += site.started
        site = SiteModel(site.settings, record=site.durable)
        site.start_outer()
        site.load(0)
        site.settle_down()
        site.begin()
        site.start_trainer()
    assert len(used) > 30
