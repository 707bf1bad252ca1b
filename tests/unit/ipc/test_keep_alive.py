"""Processes that are kept alive, and the budgets of their restarts."""

import asyncio

import pytest

from dilocoxd.errors import WorkerError
from dilocoxd.ids import Monotonic
from dilocoxd.ipc.keep_alive import RestartBudget, keep_alive


def test_budget_backs_off_forgets_and_ends() -> None:
    budget = RestartBudget(4, window_s=100.0, backoff_first_s=1.0, backoff_max_s=3.0)
    assert [budget.next_delay(Monotonic(t)) for t in (0.0, 10.0, 20.0, 30.0, 40.0)] == [1.0, 2.0, 3.0, 3.0, None]
    assert budget.next_delay(Monotonic(100.0)) == 3.0, "the first one is forgotten"
    assert budget.next_delay(Monotonic(101.0)) is None
    assert budget.total == 5


class Process:
    """Dies at once, each time; `stops_in` says in which of its lives it is told to stop."""

    def __init__(self, *, stops_in: int = 0) -> None:
        self.is_stopped = asyncio.Event()
        self.num_lives = 0
        self.told: list[str] = []
        self._stops_in = stops_in

    async def one_life(self) -> str:
        self.num_lives += 1
        if self.num_lives == self._stops_in:
            self.is_stopped.set()
        return f"life {self.num_lives}"

    async def keep(self, budget: RestartBudget) -> None:
        await keep_alive("a process", self.one_life, self.told.append, budget, self.is_stopped)


async def test_process_is_kept_alive_until_its_budget_is_spent() -> None:
    process, budget = Process(), RestartBudget(2, window_s=100.0, backoff_first_s=0.0)
    with pytest.raises(WorkerError, match="a process died too often, at last: life 3"):
        await process.keep(budget)
    assert process.told == ["life 1", "life 2", "life 3"], "the death that spends the budget is told too"


async def test_stopped_process_is_not_started_again_and_costs_no_restart() -> None:
    process, budget = Process(stops_in=2), RestartBudget(2, window_s=100.0, backoff_first_s=0.0)
    await process.keep(budget)
    assert process.num_lives == 2 and process.told == ["life 1", "life 2"]
    assert budget.total == 1


async def test_stop_ends_the_pause_before_a_restart() -> None:
    process, budget = Process(), RestartBudget(2, window_s=100.0, backoff_first_s=3000.0, backoff_max_s=3000.0)
    async with asyncio.timeout(60.0), asyncio.TaskGroup() as group:
        kept = group.create_task(process.keep(budget))
        while not process.told:
            await asyncio.sleep(0)
        process.is_stopped.set()
    assert kept.done() and process.num_lives == 1


def test_end_that_is_excused_spends_nothing_however_often_it_comes() -> None:
    budget = RestartBudget(1, window_s=100.0, backoff_first_s=1.0, excused_pause_max_s=4.0)
    delays = []
    for at in range(40):
        budget.excuse()
        delays.append(budget.next_delay(Monotonic(float(at))))
    assert delays == [1.0, 2.0, *[4.0] * 38] and (budget.total, budget.left) == (40, 1)
    assert budget.next_delay(Monotonic(40.0)) == 1.0, "one that is not excused"
    assert budget.next_delay(Monotonic(41.0)) is None
    budget.excuse()
    assert budget.next_delay(Monotonic(200.0)) == 1.0, "those of long ago make no pause longer"
