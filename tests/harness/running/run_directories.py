"""Run directories for tests, made by the real command line: a founder's and, from any running site, a joiner's."""

import contextlib
import fcntl
import io
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from dilocoxd.cli.run_dir.admission import join_link
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load
from dilocoxd.wire.join_link import read_link
from tests.harness.running.sites import SiteProcess, wait_until

OPEN = ("--set", "admission.mode=open", "--set", "admission.probation_rounds=0")
"""For attacks that are to meet another defence than the door, or probation."""
FIRST_PORT, PORTS_OF_ONE, NUM_BLOCKS = 20_000, 100, 100
"""Below the ports that the kernel gives to connections, so that none of those takes one between two starts."""


class _Ports:
    """A block of ports that this process alone gives to its sites, for as long as it lives."""

    def __init__(self) -> None:
        self._lock: IO[bytes] | None = None
        self._ports: Iterator[int] = iter(())

    def next(self) -> int:
        """The port given least recently that nobody uses on loopback. RuntimeError if there is none."""
        if self._lock is None:
            self._take_block()
        for port in itertools.islice(self._ports, PORTS_OF_ONE):
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return port
        raise RuntimeError(f"all {PORTS_OF_ONE} ports of this process are in use")

    def _take_block(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"dilocoxd-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for number in range(NUM_BLOCKS):
            lock = (folder / str(number)).open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            self._lock = lock
            start = FIRST_PORT + number * PORTS_OF_ONE
            self._ports = itertools.cycle(range(start, start + PORTS_OF_ONE))
            return
        raise RuntimeError(f"{NUM_BLOCKS} test processes run already")


_ports = _Ports()


def free_port() -> int:
    """A TCP port that nobody uses on loopback, and that no other test process will be given while this one lives."""
    return _ports.next()


def _invoke(arguments: list[str]) -> str:
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    if result.exception is not None:
        raise AssertionError(
            f"dilocoxd {' '.join(arguments)}: {result.exception!r}\n{result.output}"
        ) from result.exception
    return result.output


def common_options(directory: Path, port: int) -> list[str]:
    """Loopback only, ports of our own; one thread for each stage, for other sites share the cores."""
    ports = ["--host", "127.0.0.1", "--port", str(free_port()), "--api-port", str(port)]
    return ["--dir", str(directory), *ports, "--set", "parallel.threads_per_rank=1"]


def found_run(folder: Path, name: str, *options: str, target: str = "tiny") -> SiteProcess:
    """A site with a new run: that of a preset or a run.toml, or with `--from` one that goes on from another."""
    port = free_port()
    _invoke(["init", *([] if "--from" in options else [target]), *common_options(folder / name, port), *options])
    return SiteProcess(name, folder / name, port)


@contextlib.contextmanager
def resting(founder: SiteProcess) -> Iterator[None]:
    """The founder begins no phase inside the block, where others join: alone it makes entries faster than a newcomer on
    a busy machine catches up with, and has a part in the chain that the others get only after as many rounds."""
    _invoke(["pause", str(founder.run_dir)])
    yield
    _invoke(["resume", str(founder.run_dir)])


def link_of(run_directory: Path, address: str = "") -> str:
    """The link that the site of this directory shows, with `address` in place of its own if that is another."""
    run_dir = open_run_dir(run_directory)
    manifest, site = run_dir.load()
    link = join_link(run_dir, manifest, site, load(run_dir.identity(site)).peer_id)
    return replace(link, address=address or link.address).to_text()


def printed_address(output: str) -> str:
    """The founder's address, of the link that `init` and `start` print."""
    return read_link(output.rsplit("dilocoxd join ", 1)[1].strip()).address


def share_authority(founder: Path, other: Path) -> None:
    """Let a directory made of the founder's run.toml be a member, by the founder's own key."""
    _invoke(["authority", "import", str(other), str(founder / "authority.key")])


def join_run(folder: Path, name: str, through: SiteProcess, *options: str) -> SiteProcess:
    """A site that fetched its run from `through`, which must be running."""
    port = free_port()
    address: str = wait_until(
        lambda: through.status().get("join_address"), f"join address of {through.name}", 60, through.describe
    )
    with contextlib.redirect_stderr(io.StringIO()):
        _invoke(["join", link_of(through.run_dir, address), "--no-run", *common_options(folder / name, port), *options])
    return SiteProcess(name, folder / name, port)
