"""Decides where the files of a run lie, and that one daemon at a time owns them. Layout: docs/internals.md 5."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError
from dilocoxd.store.credentials import IDENTITY, credential
from dilocoxd.store.durable import write_file


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths inside one run directory. `path` is absolute."""

    path: Path

    @property
    def run_toml(self) -> Path:
        return self.path / "run.toml"

    @property
    def site_toml(self) -> Path:
        return self.path / "site.toml"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def peers_json(self) -> Path:
        return self.path / "peers.json"

    @property
    def site_json(self) -> Path:
        return self.path / "site.json"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def site(self) -> Path:
        return self.path / "site"

    @property
    def trainer_checkpoint(self) -> Path:
        return self.site / "trainer"

    @property
    def feedback(self) -> Path:
        return self.site / "feedback.safetensors"

    @property
    def own_work(self) -> Path:
        return self.site / "work"

    @property
    def aside(self) -> Path:
        return self.path / "aside"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def events(self) -> Path:
        return self.logs / "events.jsonl"

    def identity(self, site: SiteConfig) -> Path:
        """Path of the private key: handed over by the service manager, or in the run directory."""
        return credential(IDENTITY) or self.path / site.paths.identity

    def load(self) -> tuple[Manifest, SiteConfig]:
        """Both configuration files. Raises ConfigError."""
        return load_manifest(self.run_toml), load_site(self.site_toml)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory; the kernel lets go of it when the process dies. Raises ConfigError if it is held."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"{self.lock_file}: cannot be opened ({error.strerror}); check the folder's owner"
            ) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
                raise ConfigError(
                    f"{self.path}: another daemon (process {holder}) runs in this directory; stop it, or give this one"
                    " a directory of its own"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
            yield
        finally:
            os.close(descriptor)


def create_run_dir(path: Path, manifest: Manifest, site: SiteConfig) -> RunDir:
    """A new run directory with both configuration files. Raises ConfigError if `path` holds a run already."""
    run_dir = RunDir(path.absolute())
    if run_dir.run_toml.exists():
        raise ConfigError(f"{path}: holds a run already; use `dilocoxd run {path}`, or give --dir another directory")
    try:
        run_dir.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (run_dir.log, run_dir.snapshots, run_dir.trainer_checkpoint, run_dir.logs):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be created ({error.strerror}); give --dir a writable place") from error
    write_file(run_dir.site_toml, site.to_toml().encode("utf-8"))
    # Last: its presence says that the directory is complete.
    write_file(run_dir.run_toml, manifest.to_toml().encode("utf-8"))
    return run_dir


def open_run_dir(path: Path) -> RunDir:
    """An existing run directory. Raises ConfigError if there is none."""
    run_dir = RunDir(path.absolute())
    if not run_dir.run_toml.is_file():
        raise ConfigError(
            f"{path}: is no run directory (no run.toml in it); make one with `dilocoxd init` or `dilocoxd join`"
        )
    return run_dir
