"""Run directories for tests, made by the real command line: a founder's and, from any running site, a joiner's."""

import contextlib
import io
import socket
from pathlib import Path

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.harness.sites import SiteProcess, wait_until


def free_port() -> int:
    """A TCP port that nobody uses on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _invoke(arguments: list[str]) -> str:
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    if result.exception is not None:
        raise AssertionError(f"dilocoxd {' '.join(arguments)}: {result.exception}\n{result.output}")
    return result.output


def common_options(directory: Path, port: int) -> list[str]:
    """Loopback only, ports of our own."""
    return ["--dir", str(directory), "--host", "127.0.0.1", "--port", str(free_port()), "--api-port", str(port)]


def found_run(folder: Path, name: str, *options: str) -> SiteProcess:
    """A site with a new run."""
    port = free_port()
    _invoke(["init", "tiny", *common_options(folder / name, port), *options])
    return SiteProcess(name, folder / name, port)


def join_run(folder: Path, name: str, through: SiteProcess, *options: str) -> SiteProcess:
    """A site that fetched its run from `through`, which must be running."""
    port = free_port()
    address = wait_until(
        lambda: through.status().get("join_address"), f"join address of {through.name}", 60, through.describe
    )
    with contextlib.redirect_stderr(io.StringIO()):
        _invoke(["join", address, "--no-run", *common_options(folder / name, port), *options])
    return SiteProcess(name, folder / name, port)
