"""Which shared state a path means: a run directory's, of a stopped or running site, or one snapshot's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.errors import ConfigError
from dilocoxd.store import snapshots
from dilocoxd.store.log import SUFFIX
from dilocoxd.store.rundir import RunDir


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run on this disk. `only`: the snapshot directory that was named itself; None for a run directory."""

    manifest: Manifest
    run_dir: RunDir | None
    snapshots: Path
    only: Path | None = None

    def rounds(self) -> list[int]:
        """Rounds that have a snapshot, ascending."""
        return [int(self.only.name)] if self.only is not None else snapshots.list_rounds(self.snapshots)

    def snapshot(self, number: int) -> Path:
        """Directory of one of them."""
        return self.only if self.only is not None else self.snapshots / str(number)


def find_run(path: Path) -> StoredRun:
    """The run behind a run directory or a snapshot directory. Raises ConfigError if it is neither."""
    if (path / "run.toml").is_file():
        run_dir = RunDir(path.absolute())
        return StoredRun(load_manifest(run_dir.run_toml), run_dir, run_dir.snapshots)
    if (path / snapshots.INDEX_NAME).is_file() and path.absolute().name.isdecimal():
        return _snapshot_place(path.absolute())
    raise ConfigError(
        f"{path}: neither a run directory (no run.toml in it) nor a snapshot (no {snapshots.INDEX_NAME} in it);"
        " give the directory of `dilocoxd start` or RUN_DIR/snapshots/ROUND"
    )


def _snapshot_place(path: Path) -> StoredRun:
    home = path.parent.parent
    if not (home / "run.toml").is_file():
        raise ConfigError(
            f"{path}: there is no {home / 'run.toml'}; put that run's run.toml there, it says which model"
        )
    manifest = load_manifest(home / "run.toml")
    return StoredRun(manifest, RunDir(home), path.parent, only=path)


def newest_round(run: StoredRun) -> int:
    """Round of the newest snapshot. Raises ConfigError if there is none."""
    rounds = run.rounds()
    if not rounds:
        raise ConfigError(
            f"there is no snapshot in {run.snapshots}: wait for the first one (snapshot.every_rounds ="
            f" {run.manifest.snapshot.every_rounds}), or give --round with a round of the log"
        )
    return rounds[-1]


def newest_in_log(run: StoredRun) -> int:
    """The round to which entries lead on from the newest snapshot, which is that snapshot's where there are none.

    Looks at their names alone. Raises ConfigError as `newest_round`.
    """
    number = newest_round(run)
    if run.only is not None or run.run_dir is None:
        return number
    while (run.run_dir.log / f"{number:012d}{SUFFIX}").is_file():
        number += 1
    return number
