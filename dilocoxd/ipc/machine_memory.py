"""How much memory this machine has: all of it, what is free, and what a control group (a container) leaves of it."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")
_VMSTAT: Final = Path("/proc/vmstat")
_CGROUP: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")
NVIDIA_SMI_S: Final = 10.0
"""A driver that hangs must not hang who asks."""


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """In bytes; swap counts, for what lies there still works."""

    total: int
    available: int


def machine_memory() -> MachineMemory:
    """As of now; the tighter of the machine and our control group (version 2)."""
    fields = {}
    for line in _MEMINFO.read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        fields[name] = 1024 * int(rest.split()[0])
    total = fields["MemTotal"] + fields.get("SwapTotal", 0)
    available = fields.get("MemAvailable", fields["MemFree"]) + fields.get("SwapFree", 0)
    limit, used = _group_limit()
    return MachineMemory(min(total, limit), min(available, max(0, limit - used)))


def gpu_memory() -> int:
    """Bytes of the smallest GPU of this machine; 0 where there is none, or nobody who can tell."""
    return min(gpu_memories(), default=0)


def gpu_memories() -> list[int]:
    """Bytes of each GPU of this machine; none where there is none, or nobody who can tell."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=NVIDIA_SMI_S)
        return [int(line) << 20 for line in done.stdout.split()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def oom_kills() -> int | None:
    """How many processes the kernel has ended for lack of memory since the machine started; None: it does not say."""
    for line in _VMSTAT.read_text("ascii").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def _group_limit() -> tuple[int, int]:
    """The tightest limit of our group and those above it, and what is used below that."""
    tightest = 1 << 62, 0
    for folder in _groups():
        try:
            limit = (folder / "memory.max").read_text("ascii").strip()
            used = int((folder / "memory.current").read_text("ascii"))
            stat = (folder / "memory.stat").read_text("ascii").split()
        except (OSError, ValueError):
            continue  # the topmost group has no limit, and version 1 has other files
        used -= int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
        if limit.isdecimal() and int(limit) < tightest[0]:
            tightest = int(limit), max(0, used)
    return tightest


def _groups() -> list[Path]:
    try:
        lines = _OWN_CGROUP.read_text("ascii").splitlines()
    except OSError:
        return []
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = _CGROUP / own.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(_CGROUP))]
