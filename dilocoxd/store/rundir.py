"""Decides where the files of a run lie, and that one daemon at a time owns them. Layout: docs/internals.md 5."""

import contextlib
import fcntl
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError
from dilocoxd.store.credentials import IDENTITY, credential
from dilocoxd.store.durable import TEMPORARY_SUFFIX, write_file

_OWN_NAMES: Final = frozenset(
    (
        "site.toml",
        "lock",
        "peers.json",
        "log",
        "snapshots",
        "site",
        "logs",
        "aside",
        "p2p",
        "sock",
        "lost+found",
        "authority.key",
        "membership",
        "invite",
        "members.json",
        "checkpoint",
    )
)
"""What a start that was cut short may have left, and what the root of a disk has."""
_OF_A_RUN: Final = ("membership", "invite", "members.json", "checkpoint")
"""Files that no other run can use."""


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
    def log(self) -> Path:
        return self.path / "log"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def tokenizer(self) -> Path:
        """Files of a tokenizer that the run's creator gave."""
        return self.path / "tokenizer"

    @property
    def site(self) -> Path:
        return self.path / "site"

    @property
    def authority_key(self) -> Path:
        """Private keys of authorities, one in a line; only where somebody may invite."""
        return self.path / "authority.key"

    @property
    def membership(self) -> Path:
        """What admits this site to the run."""
        return self.path / "membership"

    @property
    def invite(self) -> Path:
        """The invite of the link that this site shows."""
        return self.path / "invite"

    @property
    def members_json(self) -> Path:
        return self.path / "members.json"

    @property
    def checkpoint(self) -> Path:
        """Height and chain head that the link named which this site joined with."""
        return self.path / "checkpoint"

    @property
    def adopted(self) -> Path:
        """Height and chain head that the operator chose last with `dilocoxd adopt`."""
        return self.site / "adopted"

    @property
    def trainer_checkpoint(self) -> Path:
        return self.site / "trainer"

    @property
    def stage_cut(self) -> Path:
        """How many layers each stage gets, as trainers have measured it."""
        return self.site / "stage_cut.json"

    @property
    def feedback(self) -> Path:
        return self.site / "feedback.safetensors"

    @property
    def last_nodes(self) -> Path:
        """Which machine ran which outer part last."""
        return self.site / "nodes.json"

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

    def require_usable(self) -> None:
        """Raises ConfigError if this process may not read and write all folders: a closed one looks empty."""
        for folder in (self.path, self.log, self.snapshots, self.site, self.logs):
            if folder.exists() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise ConfigError(
                    f"{folder}: may not be read and written by this user; run the daemon as the owner of {self.path},"
                    " or give all of it to this one with `chown -R`"
                )

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
                    f"{self.path}: process {holder} holds this directory, as a running daemon does; stop it and give"
                    " this command again, or give a second site a directory of its own"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
            yield
        finally:
            os.close(descriptor)


def _require_text(path: Path) -> None:
    """The daemon tells its parts where they work, as text. Raises ConfigError."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{str(path)!r}: this name is not written in UTF-8, as names of another system are not; rename the folder,"
            " or give another one"
        ) from error


def check_new_run_dir(path: Path, site: SiteConfig) -> None:
    """Raises ConfigError if `path` holds a run already, is a file, or is a folder with somebody else's files in it."""
    _require_text(path.absolute())
    if (path / "run.toml").exists():
        raise ConfigError(
            f"{path}: holds a run already; use `dilocoxd run {shlex.quote(str(path))}`, or give --dir another directory"
        )
    try:
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be used ({error.strerror}); give --dir a writable place") from error
    own = {*_OWN_NAMES, Path(site.paths.identity).name, Path(site.api.token_file).name}
    foreign = sorted(names - own - _cut_short(RunDir(path), names, site))
    if foreign:
        raise ConfigError(
            f"{path}: is no run directory, and has other files in it ({', '.join(foreign[:3])}); give --dir a new or"
            " empty folder"
        )


def _cut_short(run_dir: RunDir, names: set[str], site: SiteConfig) -> set[str]:
    """Which of `names`, all that is there, a start that was killed left of a run that never was."""
    left = {_half("site.toml")}
    if _is_cut_short(run_dir, names):
        identity = Path(site.paths.identity).name
        left |= {name for name in names if name.startswith(f".{identity}.")}
        left |= {"tokenizer", *_OF_A_RUN, *map(_half, (*_OF_A_RUN, "run.toml", "authority.key", identity))}
    return left & names


def _is_cut_short(run_dir: RunDir, names: set[str]) -> bool:
    """A start writes site.toml first, run.toml last, and no log; anything else is not a start's to remove."""
    return "site.toml" in names and "run.toml" not in names and not any(run_dir.log.glob("*"))


def _half(name: str) -> str:
    return name + TEMPORARY_SUFFIX


def _forget_cut_short(run_dir: RunDir, site: SiteConfig) -> None:
    """Remove what a start that was killed left, or the new run takes it for its own. Raises ConfigError.

    The identity stays, and so does an authority's key: they are the operator's, whatever the run.
    """
    names = {entry.name for entry in run_dir.path.iterdir()}
    left = [run_dir.path / name for name in sorted(_cut_short(run_dir, names, site))]
    if _is_cut_short(run_dir, names):
        left += [run_dir.snapshots / "0"]
    try:
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path}: of a start that was killed, cannot be removed ({error.strerror}); give --dir a new folder"
        ) from error


def create_run_dir(
    path: Path, manifest: Manifest, site: SiteConfig, prepare: Callable[[RunDir], object] = lambda _made: None
) -> RunDir:
    """A new run directory with both configuration files; `prepare` adds what else must be there.

    Raises ConfigError as check_new_run_dir does, and if another process makes one at the same place.
    """
    run_dir = RunDir(path.absolute())
    check_new_run_dir(path, site)
    try:
        run_dir.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (run_dir.log, run_dir.snapshots, run_dir.trainer_checkpoint, run_dir.logs):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be created ({error.strerror}); give --dir a writable place") from error
    with run_dir.locked():
        check_new_run_dir(path, site)
        _forget_cut_short(run_dir, site)
        write_file(run_dir.site_toml, site.to_toml().encode("utf-8"))
        prepare(run_dir)
        # Last: its presence says that the directory is complete.
        write_file(run_dir.run_toml, manifest.to_toml().encode("utf-8"))
    return run_dir


def open_run_dir(path: Path) -> RunDir:
    """An existing run directory. Raises ConfigError if there is none."""
    run_dir = RunDir(path.absolute())
    _require_text(run_dir.path)
    if not run_dir.run_toml.is_file():
        raise ConfigError(
            f"{path}: is no run directory (no run.toml in it); give the path of one, or make one with `dilocoxd init`"
            " or `dilocoxd join`"
        )
    return run_dir
