"""Crashes, forks and branches that come and go: what error feedback and chain hold of each phase is one in all.

The site model knows what FEEDBACK really contains: a contribution carries all that was there when it was formed, with a
codec that loses nothing. What is kept of it is removed as soon as `work_needed` allows.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.phase_returned import work_needed
from dilocoxd.wire import local
from tests.unit.rounds.site_model import SiteModel
from tests.unit.rounds.test_phases_random import ACTIONS, act

LIVES = 6
NAMES, WEIGHTS = zip(*[action for action in ACTIONS if action[0] not in ("fork", "unfork", "load")], strict=True)


class Disk:
    """What outlives the daemon: kept work, saved feedback, and what others have: the chain."""

    def __init__(self) -> None:
        self.work: set[int] = set()
        self.chain: set[int] = set()
        self.branches: list[set[int]] = []
        """Chains that were ours once, as sets of our phases."""
        self.carries: dict[int, Counter[int]] = {}
        """Phase -> what its contribution brings, by phase."""
        self.saved: tuple[int, int | None, Counter[int]] | None = None
        self.file: tuple[int, ...] | None = None
        self.height = 0


class Life(SiteModel):
    """One life of the daemon."""

    def __init__(self, settings: ev.PhaseSettings, record: ev.SiteRecord, disk: Disk, rng: random.Random) -> None:
        super().__init__(settings, record)
        self.disk, self.rng, self.file = disk, rng, disk.file
        self.feedback: Counter[int] = Counter()
        self.flying: int | None = None

    def _effect(self, task: ev.RunOuter) -> ev.OuterAnswer:
        answer = self._take_back(task) if isinstance(task.request, local.RestoreSite) else None
        if answer is not None:
            return answer
        self._count(task)
        answer = super()._effect(task)
        self.disk.file = self.file
        return answer

    def _count(self, task: ev.RunOuter) -> None:
        disk = self.disk
        match task.request:
            case local.FormContribution(_, phase) if phase not in disk.carries:
                self.feedback[phase] += 1
                disk.carries[phase], self.flying = Counter(self.feedback), phase
            case local.Settle() as settle if self.flying == settle.phase:
                if settle.is_included:
                    self.feedback.subtract(disk.carries[settle.phase])
                self.flying = None
            case local.ReturnWork(_, phase, _, is_withdrawn):
                assert phase in disk.work, f"the work of phase {phase} was removed too early"
                if task.number != self.returned_number:
                    change = self.feedback.subtract if is_withdrawn else self.feedback.update
                    change(disk.carries[phase])
            case local.SaveSite(_, _, phase):
                disk.saved = (phase, self.flying, Counter(self.feedback))

    def _take_back(self, task: ev.RunOuter) -> local.SiteDone | None:
        """RestoreSite, as outerworker/site_file.py does it."""
        request, saved = task.request, self.disk.saved
        assert isinstance(request, local.RestoreSite)
        self.feedback, self.flying = Counter(), None
        if saved is None or request.phase not in saved[:2]:
            self.books = set(self.machine.state.record.carried)
            return local.SiteDone(task.number, False, "the file belongs to another phase")
        self.feedback = Counter(saved[2])
        if request.phase == saved[1]:
            self.feedback.subtract(self.disk.carries[request.phase])
        return None

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
        self.begin(disk.height, max(disk.chain, default=None), tuple(disk.chain), tuple(disk.work))
        self.settle_down()
        return True

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
                disk.work &= recent | work_needed(self.machine.state)

    def check(self, must: set[int], when: str) -> None:
        """Nothing is there twice, and nothing is missing that was not in flight or in a lost feedback alone."""
        total = Counter(self.feedback)
        for phase in self.disk.chain:
            total.update(self.disk.carries[phase])
        assert not {phase: count for phase, count in total.items() if count not in (0, 1)}, when
        assert not {phase for phase in must if total[phase] != 1}, when


def safe_phases(site: Life) -> set[int]:
    """What a crash must not lose: all that the chain has, and all that is owed."""
    disk = site.disk
    owed = {phase for phase, _ in site.durable.returned}
    carried: list[Any] = [disk.carries.get(phase, Counter({phase: 1})) for phase in disk.chain | owed]
    return {phase for counter in carried for phase, count in counter.items() if count > 0}


def run_history(seed: int, delay: ev.Delay) -> None:
    """Some lives, each ended by a crash."""
    rng = random.Random(seed)
    settings = ev.PhaseSettings(delay, 4, 3, 2)
    disk = Disk()
    site = Life(settings, ev.SiteRecord(), disk, rng)
    while not site.boot(leave=0, may_switch=False):
        site = Life(settings, site.durable, disk, rng)
    for _ in range(LIVES):
        site.start_trainer()
        site.live(rng.randrange(20, 200))
        must, late = safe_phases(site), site.offered if rng.random() < 0.5 else None
        if late is not None:
            disk.work.add(late)  # it had our vote, so it was kept
            if rng.random() < 0.5 and late > max(disk.chain, default=-1):
                disk.chain.add(late)  # others committed its entry, and we learn it before we begin
                late = None
        disk.height += rng.choice([0, 0, 1, 2, 5])
        site = Life(settings, site.durable, disk, rng)
        while not site.boot(leave=rng.randrange(1, 4) if rng.random() < 0.4 else 0, may_switch=rng.random() < 0.3):
            site = Life(settings, site.durable, disk, rng)
        site.check(must, "after a restart")
        if late is not None and late > max(disk.chain, default=-1):
            site.join(late)
            site.settle_down()
            site.check(must | {late}, "after an entry that came late")


@pytest.mark.parametrize("delay", ["none", "phase", "arrival"])
def test_no_work_is_lost_or_counted_twice_by_crashes_and_forks(delay: ev.Delay) -> None:
    for seed in range(250):
        try:
            run_history(seed, delay)
        except AssertionError as error:
            raise AssertionError(f"delay {delay}, seed {seed}: {error}") from error
