"""`dilocoxd node`: lends this machine to a head, for outer parts and trainers of its site (docs/cluster.md)."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from dilocoxd.config.addresses import ip_version, read_address
from dilocoxd.config.sections.cluster import DEFAULT_NODE_PORT
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.sealed import read_node_key
from dilocoxd.store.rundir import RunDir


def node(head: str, key: Path, directory: Path, parts: int | None, stages: int, announce: str) -> None:
    """Does `dilocoxd node` (cli/declared/nodes.py) until it is told to end. Raises ConfigError."""
    # Only here: it loads the supervision of workers.
    from dilocoxd.daemon.node.agent import LentMachine, run_node
    from dilocoxd.daemon.workers.outer_worker import first_error

    host, port = _head(head)
    directory = directory.absolute()
    parts = parts if parts is not None else int(not stages)
    if not parts + stages:
        raise ConfigError("--parts 0 --stages 0: this machine would have no place for anything; give one of them")
    settings = LentMachine(host, port, read_node_key(key), directory, parts, stages, _announced(announce))

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--dir {directory}: cannot be made ({error.strerror}); choose another folder") from error
    with RunDir(directory).locked():
        try:
            asyncio.run(_until_told(run_node(settings, _tell)))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    """Until a signal, or an error of `work`."""
    from dilocoxd.daemon.process.stop_signals import heard

    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in heard():
        loop.add_signal_handler(number, told.set)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(work, name="node")
        await told.wait()
        running.cancel()


def _head(text: str) -> tuple[str, int]:
    """Host and port. Raises ConfigError."""
    try:
        address = read_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return address.host, address.port or DEFAULT_NODE_PORT


def _announced(text: str) -> str:
    """The same. Raises ConfigError: other sites are told IP addresses alone."""
    try:
        is_ip = not text or ip_version(read_address(text).host) is not None
    except ValueError as error:
        raise ConfigError(f"--announce: {error}") from error
    if not is_ip:
        raise ConfigError(f"--announce {text}: other sites are told an IP address; give that of {text!r}")
    return text


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed, which ends us in order
        click.echo(f"node: {text}", err=True)
