"""The model under an adapter: its files on this machine, proved by hash, read into the frozen parameters of stages.

Hashing a large model takes minutes, so size and time of files that were proved are noted (NOTE in the run directory);
only what changed since is read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.models.stage import StageModule
from dilocoxd.store.durable import write_file
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.wire.layout import ParamSpec

NOTE: Final = "base-files.json"
Tell = Callable[[str], None]


@torch.no_grad()
def fill_frozen(
    stages: Iterable[StageModule], source: Pretrained, place: Callable[[Tensor], tuple[Tensor, int]] = lambda p: (p, 0)
) -> None:
    """Frozen parameters of `stages` <- files. `place`: the part of one that lies here, and where in its flat values.

    Raises ConfigError for a tensor that is missing or no number.
    """
    for stage in stages:
        for name, parameter in stage.frozen_parameters():
            part, offset = place(parameter)
            flat, start = part.view(-1), -offset
            for piece in source.values(ParamSpec(name, tuple(parameter.shape))):
                first, last = max(0, start), min(len(flat), start + len(piece))
                if first < last:
                    flat[first:last].copy_(torch.from_numpy(piece[first - start : last - start].copy()))
                start += len(piece)


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """Where a site has the model under its run's adapter."""

    folder: str
    """site.toml, paths.base."""
    sha256: dict[str, str]
    """Of its files of weights, by name (run.toml, lora.base_files)."""
    run_dir: Path

    def open(self, tell: Tell = lambda text: None) -> Pretrained:
        """The files, each with the run's hash. Raises ConfigError."""
        if not self.folder:
            raise ConfigError(
                "this run trains an adapter of a model whose files every site needs, and site.toml does not say where"
                " they are; set paths.base, or join with --init DIR"
            )
        source = Pretrained(Path(self.folder).expanduser())
        note = self.run_dir / NOTE
        known = _read(note)
        proved = {name: self._proved(source.folder / name, known.get(name), tell) for name in self.sha256}
        if proved != known and self.run_dir.is_dir():
            write_file(note, json.dumps(proved, indent=1).encode())
        return source

    def _proved(self, path: Path, known: list[object] | None, tell: Tell) -> list[object]:
        wanted = self.sha256[path.name]
        if not path.is_file():
            raise ConfigError(f"{path} is missing; the run's model has it (sha256 {wanted[:16]}), download it again")
        stat = path.stat()
        row: list[object] = [wanted, str(path.absolute()), stat.st_size, stat.st_mtime_ns]
        if known != row:
            tell(f"hashing {path.name}")
            actual = file_sha256(path).hex()
            if actual != wanted:
                raise ConfigError(
                    f"{path} has sha256 {actual[:16]}, that of the run's model is {wanted[:16]}; give the files that"
                    " the run was started with (--init, paths.base)"
                )
        return row


def frozen_of(manifest: Manifest, folder: str, run_dir: Path) -> FrozenModel | None:
    """The model under a run's adapter; None if the run trains all parameters."""
    return FrozenModel(folder, dict(manifest.lora.base_files), run_dir) if manifest.lora.rank else None


def _read(path: Path) -> dict[str, list[object]]:
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}
