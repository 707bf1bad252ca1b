"""A worker that was killed: lack of memory is named with figures, and nobody else's kill is blamed on it."""

import dataclasses

import pytest

from dilocoxd.daemon.workers.kills import KillReader
from dilocoxd.daemon.workers.supervisor import describe_exit
from dilocoxd.ipc.machine_memory import MachineMemory, oom_kills

GB = 10**9
DIED = f"its socket failed ({describe_exit(-9)})"
FIGURES = "this site wants about 620.8 GB, this machine has 25.0 GB, of which 22.0 GB are free now"


@dataclasses.dataclass
class Machine:
    """What the kernel says."""

    total: int = 25 * GB
    kills: int | None = 4

    def memory(self) -> MachineMemory:
        return MachineMemory(self.total, 22 * GB)

    def count(self) -> int | None:
        return self.kills


@pytest.mark.parametrize("kills", [4, None])
def test_model_that_never_fitted_is_the_probable_cause(kills: int | None) -> None:
    machine = Machine(kills=kills)
    reader = KillReader(620_800_000_000, machine.memory, machine.count)
    assert reader.told(DIED) == f"{DIED}: killed, probably for lack of memory: {FIGURES}"


def test_kill_that_the_kernel_counted_is_certain() -> None:
    machine = Machine()
    reader = KillReader(2 * GB, machine.memory, machine.count)
    machine.kills = 5
    assert "killed, for lack of memory: this site wants about 2.0 GB" in reader.told(DIED)
    assert reader.told(DIED) == DIED, "the next one is somebody else's"


def test_other_deaths_are_told_as_they_were() -> None:
    machine = Machine(kills=None)
    reader = KillReader(620 * GB, machine.memory, machine.count)
    for status in (1, -15):
        assert reader.told(describe_exit(status)) == describe_exit(status)


def test_kernel_says_how_many_it_killed() -> None:
    assert (oom_kills() or 0) >= 0
