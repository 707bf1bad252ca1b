"""Checks of the machine for `dilocoxd doctor`: Python, torch, GPU, clock, disk, memory, shared memory, file limits."""

import contextlib
import ctypes
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from dilocoxd.answers.words import in_bytes, plural
from dilocoxd.cli.doctor.findings import Finding, Level
from dilocoxd.config.footprint.estimate import PROCESSES_BYTES, site_estimate
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.compilers import missing_for_compiling
from dilocoxd.config.site import SiteConfig
from dilocoxd.daemon.process.open_files import allowable_open_files
from dilocoxd.errors import reason_of
from dilocoxd.ipc.machine_memory import machine_memory
from dilocoxd.store.rundir import RunDir

PYTHON: Final = (3, 11)
FILES_MIN: Final = 4096
SHM_PER_RANK: Final = 64 << 20
DISK_MIN: Final = 2 << 30
STATES_MIN: Final = 3
"""Snapshots: the newest, the one before it, and the one that is being written."""
CLOCK_ERROR_MAX_S: Final = 1.0
_STA_UNSYNC: Final = 0x0040
_TORCH_PROBE: Final = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": [], "nccl": None}
if torch.cuda.is_available():
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""


def machine_findings(site: SiteConfig | None, manifest: Manifest | None, directory: Path) -> Iterator[Finding]:
    """All checks of this file."""
    yield python_finding()
    torch = probe_torch()
    yield torch_finding(torch)
    yield gpu_finding(torch, site)
    yield clock_finding()
    yield disk_finding(directory, manifest)
    yield memory_finding(manifest, site)
    yield shm_finding(site)
    if site is not None:
        yield threads_finding(site)
        yield compiler_finding(site)
    yield files_finding()


def python_finding() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok" if sys.version_info >= PYTHON else "error", f"Python {version}")


@dataclass(frozen=True, slots=True)
class FoundTorch:
    """What a fresh process finds out about torch."""

    version: str = ""
    cuda: str | None = None
    nccl: str | None = None
    gpus: tuple[str, ...] = ()
    error: str = ""
    """Why it cannot be imported."""


def probe_torch() -> FoundTorch:
    """Of the Python that runs this."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode == 0:
            return TypeAdapter(FoundTorch).validate_json(done.stdout)
        return FoundTorch(error=done.stderr[-300:] or f"exit code {done.returncode}")
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return FoundTorch(error=reason_of(error)[:300])


def wanted_torch() -> str:
    """The version range that the installed package asks for; empty when it is not installed."""
    try:
        needs = importlib.metadata.requires("dilocoxd") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((need.removeprefix("torch") for need in needs if need.startswith("torch") and ";" not in need), "")


def torch_finding(torch: FoundTorch) -> Finding:
    wanted, version = wanted_torch(), torch.version
    if torch.error:
        return Finding(
            "torch", "error", f"torch cannot be imported, {wanted or 'any version'} is wanted: {torch.error}"
        )
    low = wanted.partition(">=")[2].partition(",")[0]
    is_tested = not low or version.split(".")[:2] == low.split(".")[:2]
    text = f"torch {version}, CUDA {torch.cuda or 'none'}, NCCL {torch.nccl or 'none'}"
    return Finding("torch", "ok" if is_tested else "warning", text + ("" if is_tested else f"; tested with {wanted}"))


def gpu_finding(torch: FoundTorch, site: SiteConfig | None) -> Finding:
    gpus = torch.gpus
    if site is None or (site.parallel.device == "cpu" and site.workers.encode_device == "cpu"):
        return Finding("gpu", "info", f"{len(gpus)} GPU; not needed on CPU")
    if site.parallel.device == "cpu":
        level: Level = "ok" if gpus else "error"
        return Finding(
            "gpu", level, f"{len(gpus)} GPU, for workers.encode_device = 'cuda': {', '.join(gpus) or 'none'}"
        )
    needed = site.ranks_here
    if len(gpus) < needed:
        return Finding(
            "gpu", "error", f"{len(gpus)} GPU, {needed} processes want one each: {', '.join(gpus) or 'none'}"
        )
    return Finding("gpu", "ok", f"{len(gpus)} GPU for {needed} processes: {', '.join(gpus)}; NCCL {torch.nccl}")


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2): the fields up to what is read here, then room for the rest."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


def clock_finding() -> Finding:
    """Asks the kernel, so it works whatever program keeps the time."""
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        return Finding("clock", "info", f"the kernel does not say ({os.strerror(ctypes.get_errno())})")
    if timex.status & _STA_UNSYNC:
        return Finding("clock", "warning", "the kernel's clock is not synchronised by any time service")
    error_s = timex.maxerror / 1e6
    level = "ok" if error_s <= CLOCK_ERROR_MAX_S else "warning"
    return Finding("clock", level, f"synchronised, error at most {error_s:.3f} s")  # type: ignore[arg-type]


def disk_finding(directory: Path, manifest: Manifest | None) -> Finding:
    """An error when not even the first snapshots have room, a warning when the run will want more than there is."""
    free = shutil.disk_usage(directory).free
    weight = site_estimate(manifest, None) if manifest is not None else None
    least, wanted = (STATES_MIN * weight.state_bytes, weight.disk_bytes) if weight else (0, 0)
    held = _held_bytes(directory)
    least, wanted = (DISK_MIN + max(0, size - held) for size in (least, max(least, wanted)))
    text = f"{in_bytes(free)} free at {directory}, {wanted / 1e9:.1f} GB wanted"
    return Finding("disk", "error" if free < least else "warning" if free < wanted else "ok", text)


def _held_bytes(directory: Path) -> int:
    """Of what a run wants, what its directory has already; 0 where none is yet."""
    run_dir, total = RunDir(directory), 0
    if not run_dir.run_toml.exists():
        return 0  # a new run's is not made yet: folders of such names are somebody else's
    for folder in (run_dir.log, run_dir.snapshots, run_dir.site):
        # A daemon at work removes what is old: a folder may go between its name and its files.
        with contextlib.suppress(OSError):
            for path in folder.rglob("*"):
                with contextlib.suppress(OSError):
                    total += path.stat().st_size
    return total


def memory_finding(manifest: Manifest | None, site: SiteConfig | None = None) -> Finding:
    """An error when not even the copies of the model have room, a warning when little is left for the rest."""
    available = machine_memory().available
    if manifest is None:
        copies, needed, rest = 0, PROCESSES_BYTES, "without a model"
    else:
        weight = site_estimate(manifest, site)
        copies, needed = weight.copies_bytes, weight.node_bytes
        rest = f"{copies / 1e9:.1f} GB of it for copies of the model"
        if manifest.model.kind == "external":
            rest += "; activations of your module come on top"
    text = f"{available / 1e9:.1f} GB available, about {needed / 1e9:.1f} GB wanted ({rest})"
    return Finding("memory", "error" if available < copies else "warning" if available < needed else "ok", text)


def shm_finding(site: SiteConfig | None) -> Finding:
    path = Path("/dev/shm")
    if not path.is_dir():
        return Finding("shm", "warning", "there is no /dev/shm")
    size, needed = shutil.disk_usage(path).total, SHM_PER_RANK * (site.ranks_here if site is not None else 1)
    text = f"/dev/shm has {in_bytes(size)}, {in_bytes(needed)} wanted"
    return Finding("shm", "ok" if size >= needed else "warning", text)


def threads_finding(site: SiteConfig) -> Finding:
    """Threads of all trainer processes, and those of all outer parts, against the cores that we may use.

    Not their sum: the outer worker yields to training (`workers.outer_nice`)."""
    cores, parts = len(os.sched_getaffinity(0)), site.workers.outer_parts
    wanted, outer = site.ranks_here * site.parallel.threads_per_rank, parts * site.workers.outer_threads
    each = site.parallel.threads_per_rank or "as many as fit"
    whose = "the one trainer process" if site.ranks_here == 1 else f"each of {site.ranks_here} trainer processes"
    text = f"threads of {whose}: {each}, on {plural(cores, 'core')}"
    if outer > 1:
        text += f"; of each of {parts} outer workers: {site.workers.outer_threads}"
    return Finding("threads", "warning" if max(wanted, outer) > cores else "ok", text)


def compiler_finding(site: SiteConfig) -> Finding:
    if not site.parallel.compile:
        return Finding("compiler", "info", "blocks are not compiled (parallel.compile = false)")
    missing = missing_for_compiling(site.parallel.device)
    return Finding("compiler", "error" if missing else "ok", missing or "blocks can be compiled")


def files_finding() -> Finding:
    """Of a daemon that is started from this shell: it raises the soft limit by itself."""
    allowed = allowable_open_files()
    return Finding("files", "ok" if allowed >= FILES_MIN else "warning", f"a daemon may have {allowed} open files")
