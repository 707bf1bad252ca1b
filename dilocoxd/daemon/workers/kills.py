"""Says of a worker that was killed whether that was for lack of memory, with figures: a bare signal 9 helps nobody."""

from collections.abc import Callable

from dilocoxd.ipc.machine_memory import MachineMemory, machine_memory, oom_kills

KILLED = "killed by SIGKILL"
"""In the reason of a death (daemon/workers/supervisor.py)."""


class KillReader:
    """For one daemon; the kernel's count of such kills is compared with that of the start."""

    def __init__(
        self,
        wanted_bytes: int,
        memory: Callable[[], MachineMemory] = machine_memory,
        count: Callable[[], int | None] = oom_kills,
    ) -> None:
        """`wanted_bytes`: what model and processes of this site want."""
        self._wanted = wanted_bytes
        self._memory = memory
        self._count = count
        self._known = count()

    def told(self, reason: str) -> str:
        """`reason` of a death; with the likely cause if it was a kill and memory may have been it."""
        if KILLED not in reason:
            return reason
        count, before = self._count(), self._known
        self._known = count
        memory = self._memory()
        is_certain = count is not None and before is not None and count > before
        if not is_certain and count is not None and self._wanted <= memory.total:
            return reason
        likely = "" if is_certain else "probably "
        return (
            f"{reason}: killed, {likely}for lack of memory: this site wants about {self._wanted / 1e9:.1f} GB,"
            f" this machine has {memory.total / 1e9:.1f} GB, of which {memory.available / 1e9:.1f} GB are free now"
        )
