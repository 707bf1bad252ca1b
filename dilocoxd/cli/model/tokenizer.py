"""The files of a given tokenizer in the run directory: chat and export need more of them than training does."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.origin import TOKENIZER_FILES
from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import write_file
from dilocoxd.store.rundir import RunDir

if TYPE_CHECKING:
    from dilocoxd.swarm.discovery.bootstrap import Access


def hashes_of(folder: Path) -> dict[str, str]:
    """sha256, hex, of the tokenizer's files in `folder`, by name. Raises ConfigError."""
    try:
        return {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in TOKENIZER_FILES
            if (folder / name).is_file()
        }
    except OSError as error:
        raise ConfigError(f"--tokenizer {folder}: cannot be read ({error.strerror}); give a readable folder") from error


def with_tokenizer_files(manifest: Manifest, folder: Path | None) -> Manifest:
    """`manifest` with the hashes of all files of a given tokenizer."""
    if folder is None:
        return manifest
    section = manifest.tokenizer.model_copy(update={"files": hashes_of(folder)})
    return manifest.model_copy(update={"tokenizer": section})


@dataclass(frozen=True, slots=True)
class JoinedTokenizer:
    """Files that a joining site keeps; None: it has them, or the run has none."""

    folder: Path | None = None

    def publish(self, run_dir: RunDir) -> None:
        """Copy them into the run directory. Raises StoreError, OSError."""
        if self.folder is None:
            return
        target = run_dir.tokenizer
        target.mkdir(exist_ok=True)
        for path in sorted(self.folder.iterdir()):
            write_file(target / path.name, path.read_bytes())


@contextmanager
def joined_tokenizer(manifest: Manifest, near: Path, access: "Access") -> Iterator[JoinedTokenizer]:
    """The run's tokenizer from a peer, unless an earlier join brought it. Raises ConfigError, StoreError."""
    wanted = manifest.tokenizer.files
    is_here = (near / "run.toml").exists() and wanted.items() <= hashes_of(near / "tokenizer").items()
    if not wanted or is_here:
        yield JoinedTokenizer()
        return
    with tempfile.TemporaryDirectory(prefix="dilocoxd-tokenizer-") as folder:
        # Only here: everything else does without the network.
        from dilocoxd.swarm.discovery.tokenizer import fetch_tokenizer

        said = replace(access, tell=lambda line: click.echo(f"tokenizer: {line}", err=True))
        fetch_tokenizer(said, manifest, Path(folder))
        yield JoinedTokenizer(Path(folder))
