"""Snapshot 0 of a run that starts from pretrained weights: where genesis would be, on every site, kept for good."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError
from dilocoxd.store import snapshots
from dilocoxd.store.rundir import RunDir
from dilocoxd.wire.entry import genesis_hash


@dataclass(frozen=True, slots=True)
class StateHashes:
    """What the index of state 0 says besides its files (store/snapshots.py)."""

    anchor_sha256: str = ""
    segments: tuple[tuple[int, str], ...] = ()


def publish_first_state(folder: Path, run_dir: RunDir, manifest: Manifest, hashes: StateHashes) -> None:
    """Let the files in `folder`, which is on the same disk, be snapshot 0 of the run. Raises StoreError, OSError."""
    names = [snapshots.ANCHOR_NAME, *(name for name in snapshots.OPTIONAL_NAMES if (folder / name).is_file())]
    files = tuple(snapshots.hash_chunks(folder / name) for name in names)
    head = genesis_hash(manifest.run_id, manifest.sha256())
    digest = manifest.init.state_digest
    index = snapshots.SnapshotIndex(
        manifest.run_id, 0, hashes.anchor_sha256, digest, head.hex(), files, hashes.segments
    )
    snapshots.publish(folder, run_dir.snapshots / "0", index)


def require_same_files(wanted: dict[str, str], found: dict[str, str], folder: Path, otherwise: str) -> None:
    """Raise ConfigError unless `folder` has the run's files of weights (name to sha256, hex).

    `otherwise` ends the sentence: what else the operator can do.
    """
    for name, sha256 in wanted.items():
        if found.get(name) != sha256:
            what = "is missing" if name not in found else f"has sha256 {found[name][:16]}, the run's is {sha256[:16]}"
            raise ConfigError(f"{folder / name}: {what}; give the same files that the run started from{otherwise}")
