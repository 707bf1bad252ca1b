"""Whether this machine can have a GPU at all, told without torch, which takes seconds to load.

Only a machine that shows no trace of one is refused before anything is written: what is doubtful (hidden by
CUDA_VISIBLE_DEVICES, cut by MIG, fewer than processes, a torch without CUDA) passes, and the trainer that finds no
device says so (trainer/main.py). `dilocoxd doctor` counts them, with torch.
"""

import ctypes
from pathlib import Path
from typing import Final

from dilocoxd.cli.doctor.findings import Finding
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig

ROOT: Final = Path("/")
TRACES: Final = (
    *("dev/nvidia*", "dev/nvhost*", "dev/nvmap", "dev/nvgpu*", "proc/driver/nvidia"),  # NVIDIA, Jetson
    *("dev/kfd", "dev/dxg", "dev/mxcd", "dev/iluvatar*"),  # AMD, WSL, makers whose torch says cuda too
)
"""What drivers leave; in a container too, for without these a program there reaches no GPU."""
LIBRARY: Final = "libcuda.so.1"
"""Of the driver, not of torch: a container that is lent a GPU in another way has it all the same."""


def may_have_gpu() -> bool:
    """False where no driver left a trace, and no program could load one."""
    return any(next(ROOT.glob(trace), None) for trace in TRACES) or _has_library()


def _has_library() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def device_finding(manifest: Manifest, site: SiteConfig) -> Finding:
    """An error where the processes of this machine want a GPU and it shows none.

    Not judged: a site with work on nodes, whose GPUs may be theirs, and loops of the operator's own, which choose
    where they compute.
    """
    wanting = []
    if site.parallel.device == "cuda" and not site.cluster.stages and manifest.model.kind != "external":
        wanting.append("parallel.device = 'cuda'")
    if site.workers.encode_device == "cuda" and not site.cluster.outer_parts:
        wanting.append("workers.encode_device = 'cuda'")
    if not wanting:
        return Finding("gpu", "info", "not needed by the processes of this machine")
    if may_have_gpu():
        return Finding("gpu", "ok", "a driver is here")
    return Finding("gpu", "error", f"{' and '.join(wanting)}, but this machine shows no GPU and no driver of one")
