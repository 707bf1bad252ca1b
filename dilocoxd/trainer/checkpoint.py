"""The site's own inner state on disk: the optimizer's moments and the place in the data, per stage, under global names.

``<directory>/<global step>/stage-<k>-of-<n>.safetensors``; a set counts when all n files are there. Parameters are not
in it: they come from the anchor. A site that starts with another number of stages can still read the set.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dilocoxd.store.durable import fsync_directory

_KEEP: Final = 2
_META_KEY: Final = "dilocoxd"
_ADAMW_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_MUON_MOMENTS: Final = ("momentum_buffer",)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far this site's own training is; saved and restored with the moments."""

    global_step: int = 0
    """Inner steps of this site so far."""
    optimizer_step: int = 0
    """Steps behind the moments."""
    position: int = 0
    """Sequences read from the site's data order."""
    shared_step: int = 0
    """Place on the run's learning rate schedule."""


class CheckpointWriter:
    """Writes one stage's files in the background; a boundary that comes while it is still writing is left out."""

    def __init__(self, stage_rank: int, num_ranks: int) -> None:
        self._name = f"stage-{stage_rank}-of-{num_ranks}.safetensors"
        self._is_pruner = stage_rank == 0
        self._num_ranks = num_ranks
        self._thread: threading.Thread | None = None
        self.error: str = ""
        """Why the last write failed; empty if it did not. Training goes on without checkpoints."""

    def write(self, directory: Path, progress: Progress, moments: Mapping[str, Tensor]) -> bool:
        """Start writing ``moments`` (already copies); False if the one before is not done yet."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(
            target=self._write, args=(directory, progress, dict(moments)), name="checkpoint", daemon=True
        )
        self._thread.start()
        return True

    def finish(self) -> None:
        """Wait until what was started is on disk."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, directory: Path, progress: Progress, moments: dict[str, Tensor]) -> None:
        try:
            folder = directory / f"{progress.global_step:012d}"
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{self._name}.tmp"
            save_file(moments, temporary, metadata={_META_KEY: json.dumps(asdict(progress))})
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.rename(folder / self._name)
            fsync_directory(folder)
            if self._is_pruner:
                fsync_directory(directory)
                _prune(directory, self._num_ranks)
            self.error = ""
        except (OSError, SafetensorError) as error:
            self.error = f"checkpoint in {directory}: {error}"


def newest_complete(directory: Path) -> Path | None:
    """Folder of the newest complete set, or None."""
    complete = [folder for folder in _folders(directory) if _is_complete(folder)]
    return complete[-1] if complete else None


def read_moments(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Progress, dict[str, Tensor]] | None:
    """Progress and the moments named in ``shapes`` (`moment_shapes`), or None if the set does not fit or is damaged.

    A set of another inner optimizer does not fit: it has other moments.
    """
    found: dict[str, Tensor] = {}
    progress: Progress | None = None
    try:
        for path in sorted(folder.glob("stage-*.safetensors")):
            with safe_open(path, framework="pt") as file:
                progress = Progress(**json.loads(file.metadata()[_META_KEY]))
                for key in shapes.keys() & set(file.keys()):
                    found[key] = file.get_tensor(key)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError):
        return None
    fits = all(key in found and tuple(found[key].shape) == shape for key, shape in shapes.items())
    return (progress, found) if fits and progress is not None else None


def copy_moments(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Copies of the moments on the CPU, as "<parameter>.exp_avg" and so on; nothing of parameters not stepped yet."""
    return {
        f"{name}.{moment}": optimizer.state[param][moment].detach().to("cpu", copy=True).contiguous()
        for name, param in parameters.items()
        if param in optimizer.state
        for moment in _moments_of(optimizer)
    }


def moment_shapes(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what `copy_moments` gives."""
    return {
        f"{name}.{moment}": tuple(param.shape)
        for name, param in parameters.items()
        for moment in _moments_of(optimizer)
    }


def _moments_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    return _MUON_MOMENTS if isinstance(optimizer, torch.optim.Muon) else _ADAMW_MOMENTS


def load_moments(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    moments: Mapping[str, Tensor],
    optimizer_step: int,
) -> None:
    """Put moments back into the optimizer."""
    names = _moments_of(optimizer)
    for name, param in parameters.items():
        state = {moment: moments[f"{name}.{moment}"].to(param.device, copy=True) for moment in names}
        if names == _ADAMW_MOMENTS:
            state["step"] = torch.tensor(float(optimizer_step), dtype=torch.float32, device=param.device)
        optimizer.state[param] = state


def _folders(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir() and path.name.isdecimal())
    except OSError:
        return []


def _is_complete(folder: Path) -> bool:
    names = {path.name for path in folder.glob("stage-*-of-*.safetensors")}
    counts = {int(name.removesuffix(".safetensors").rsplit("-", 1)[1]) for name in names}
    return any(all(f"stage-{k}-of-{n}.safetensors" in names for k in range(n)) for n in counts)


def _prune(directory: Path, num_ranks: int) -> None:
    complete = [folder for folder in _folders(directory) if _is_complete(folder)]
    keep_from = complete[-_KEEP] if len(complete) >= _KEEP else None
    for folder in _folders(directory):
        if keep_from is not None and folder < keep_from:
            shutil.rmtree(folder, ignore_errors=True)
