"""What a rank holds, for those who watch it grow."""

from __future__ import annotations

import resource
from pathlib import Path

import torch


def held_bytes(device: torch.device) -> int:
    """The most that tensors took on the GPU so far; without one this process's own main memory, shared buffers left
    out. 0 where nobody can tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return 0
    return max(0, resident - shared) * resource.getpagesize()
