"""Crashes, forks and branches that come and go: what error feedback and chain hold of each phase is one in all.

The site model knows what FEEDBACK really contains: a contribution has all that was there when it was formed, with a
codec that loses nothing. What is kept of it is removed as soon as `work_needed` allows. A life ends with a crash, or in
an orderly way, perhaps with a contribution in flight.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from dilocoxd.config.agreement import Delay
from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.repayment import work_needed
from dilocoxd.machines.phase.settings import PhaseSettings, SavedFeedback, SiteRecord
from dilocoxd.machines.phase.vocabulary import OuterAnswer
from dilocoxd.wire.local import outer_worker as local
from tests.unit.machines.phase.site_model import SiteModel
from tests.unit.machines.phase.test_random_schedules import ACTIONS, act

LIVES = 6
NAMES, WEIGHTS = zip(*[action for action in ACTIONS if action[0] not in ("fork", "unfork", "load")], strict=True)


class Disk:
    """What outlives the daemon: kept work, the feedback file, and what others have: the chain."""

    def __init__(self) -> None:
        self.work: set[int] = set()
        self.chain: set[int] = set()
        self.branches: list[set[int]] = []
        """Chains that were ours once, as sets of our phases."""
        self.contents: dict[int, Counter[int]] = {}
        self.saved: SavedFeedback | None = None
        self.height = 0

    def lose_record(self) -> SiteRecord:
        """site.json is gone. A number that nothing else tells of was in no vote and in no entry, and may come again."""
        known = {-1, *self.chain, *self.work}
        if self.saved is not None:
            known |= {self.saved.phase, *self.saved.content, self.saved.in_flight or 0}
        for phase in [phase for phase in self.contents if phase > max(known)]:
            del self.contents[phase]
        return SiteRecord()


class Life(SiteModel):
    """One life of the daemon."""

    def __init__(self, settings: PhaseSettings, record: SiteRecord, disk: Disk, rng: random.Random) -> None:
        super().__init__(settings, record)
        self.disk, self.rng, self.saved, self.contents = disk, rng, disk.saved, disk.contents

    def _effect(self, task: cmd.RunOuter) -> OuterAnswer:
        if isinstance(task.request, local.ReturnWork):
            assert task.request.phase in self.disk.work, f"the work of phase {task.request.phase} was removed too early"
        answer = super()._effect(task)
        self.disk.saved = self.saved
        return answer

    def boot(self, *, leave: int, may_switch: bool) -> bool:
        """Catch up, which may drop our newest phases or bring another branch; then the feedback is put in place.

        False: it did not come so far.
        """
        disk = self.disk
        self.start_outer()
        self.load(disk.height)
        self.settle_down()
        if leave:
            self.drop(leave)
        if may_switch:
            self.switch()
        for _ in range(self.rng.randrange(3)):
            self.commit(is_included=False)  # an entry of the others
            self.settle_down()
            disk.height += 1
        if self.rng.random() < 0.1:
            return False  # and it dies again before the feedback is in place
        self.begin(disk.chain, disk.work)
        self.settle_down()
        return True

    def end(self) -> None:
        """It leaves in an orderly way: the feedback file is written with what is in flight."""
        self.send(ev.ResumeOrdered())
        self.send(ev.LeaveOrdered())
        if not self.outer_is_up:
            self.settle_down(until_due=True)
            self.start_outer()
        self.settle_down(until_due=True)
        assert self.has_left

    def drop(self, count: int) -> None:
        """A fork takes our newest phases out of the chain."""
        self.disk.branches.append(set(self.disk.chain))
        for phase in sorted(self.disk.chain)[-count:]:
            self._leave(phase)

    def switch(self) -> None:
        """A branch that was ours before wins."""
        disk = self.disk
        known = [
            branch
            for branch in disk.branches[-6:]
            if branch != disk.chain and all(p in disk.work and p != self.offered for p in branch - disk.chain)
        ]
        if not known:
            return
        branch = self.rng.choice(known)
        disk.branches.append(set(disk.chain))
        for phase in sorted(disk.chain - branch):
            self._leave(phase)
        for phase in sorted(branch - disk.chain):
            self.join(phase)

    def _leave(self, phase: int) -> None:
        self.disk.chain.discard(phase)
        self.move(phase, is_withdrawn=False)

    def join(self, phase: int) -> None:
        """An entry that names it becomes ours."""
        self.disk.chain.add(phase)
        self.move(phase, is_withdrawn=True)

    def live(self, length: int) -> None:
        """Random events; entries take or leave what is offered."""
        disk, rng = self.disk, self.rng
        for action in rng.choices(NAMES, WEIGHTS, k=length):
            offered = self.offered
            act(self, action)
            if offered is not None and self.offered is None and action in ("commit", "abandon_voted"):
                disk.work.add(offered)
                disk.chain |= {offered} if action == "commit" else set()
            disk.height = self.machine.state.expected or disk.height
            if rng.random() < 0.05:
                self.drop(rng.randrange(1, 8))
            if rng.random() < 0.03:
                self.switch()
            if rng.random() < 0.2:
                recent = {*sorted(disk.work)[-3:], *sorted(disk.chain)[-8:], self.offered}
                needed = work_needed(self.machine.state)
                disk.work &= disk.work if needed is None else recent | needed

    def check(self, must: set[int], when: str) -> None:
        """Nothing is there twice, and nothing is missing that was not in flight or in a lost feedback alone."""
        self.chain = set(self.disk.chain)
        total = self.counted()
        assert not {phase: count for phase, count in total.items() if count not in (0, 1)}, when
        assert not {phase for phase in must if total[phase] != 1}, when


def safe_phases(site: Life, *, has_left: bool) -> set[int]:
    """What an end must not lose: all that the chain has, all that is kept; after an orderly one, all there is."""
    disk = site.disk
    carried: list[Any] = [disk.contents.get(phase, Counter({phase: 1})) for phase in disk.chain | disk.work]
    # Before the first contribution is settled there is no number that a feedback file could be named after.
    carried += [site.feedback] if has_left and site.machine.state.record.last_settled is not None else []
    return {phase for counter in carried for phase, count in counter.items() if count > 0}


def run_history(seed: int, delay: Delay, *, record_losses: float = 0.0) -> None:
    """Some lives, each ended by a crash or in an orderly way. `record_losses`: how likely site.json is gone then."""
    rng, losses = random.Random(seed), random.Random(~seed)
    settings = PhaseSettings(delay, 4, 3, 2)
    disk = Disk()

    def reborn(record: SiteRecord) -> Life:
        is_lost = losses.random() < record_losses
        return Life(settings, disk.lose_record() if is_lost else record, disk, rng)

    site = Life(settings, SiteRecord(), disk, rng)
    while not site.boot(leave=0, may_switch=False):
        site = reborn(site.durable)
    for _ in range(LIVES):
        site.start_trainer()
        site.live(rng.randrange(20, 200))
        has_left = rng.random() < 0.3
        if has_left:
            site.end()
        must, late = safe_phases(site, has_left=has_left), site.offered if rng.random() < 0.5 else None
        if late is not None:
            disk.work.add(late)  # it had our vote, so it was kept
            if rng.random() < 0.5 and late > max(disk.chain, default=-1):
                disk.chain.add(late)  # others committed its entry, and we learn it before we begin
                late = None
        disk.height += rng.choice([0, 0, 1, 2, 5])
        site = reborn(site.durable)
        while not site.boot(leave=rng.randrange(1, 4) if rng.random() < 0.4 else 0, may_switch=rng.random() < 0.3):
            site = reborn(site.durable)
        site.check(must, "after a restart")
        if late is not None and late > max(disk.chain, default=-1):
            site.join(late)
            site.settle_down()
            site.check(must | {late}, "after an entry that came late")


@pytest.mark.parametrize("record_losses", [0.0, 0.4])
@pytest.mark.parametrize("delay", ["none", "phase", "arrival"])
def test_no_work_is_lost_or_counted_twice_by_crashes_and_forks(delay: Delay, record_losses: float) -> None:
    for seed in range(200):
        try:
            run_history(seed, delay, record_losses=record_losses)
        except AssertionError as error:
            raise AssertionError(f"delay {delay}, seed {seed}: {error}") from error


@pytest.mark.parametrize("in_flight", [None, PhaseId(7)])
def test_number_that_only_the_feedback_file_has_is_not_used_again(in_flight: PhaseId | None) -> None:
    """site.json was lost: work of a second phase 5 would be counted for that which the file holds."""
    site = SiteModel(PhaseSettings("phase", 4, 3, 2), SiteRecord())
    site.saved = SavedFeedback(PhaseId(5), in_flight, {PhaseId(5): 1})
    site.start_outer()
    site.load(0)
    site.settle_down()
    site.begin(set(), set())
    site.settle_down()
    site.start_trainer()
    site.settle_down()
    assert site.feedback == {5: 1} and min(site.started) > (in_flight or 5)
