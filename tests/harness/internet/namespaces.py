"""Network namespaces for one test: making them, joining them by a bridge, working inside, removing them. As root."""

import contextlib
import ctypes
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/run/netns")
_LIBC = ctypes.CDLL(None, use_errno=True)


class NamespaceError(Exception):
    """A command of the network tools failed; the message is what it said."""


def run_tool(*command: str) -> str:
    """What a network tool printed. Raises NamespaceError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamespaceError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def enter_namespace(name: str) -> None:
    """Move the calling thread (only it) into a network namespace. Raises OSError."""
    place = os.open(NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(place, name)
    finally:
        os.close(place)


@contextlib.contextmanager
def standing_in(name: str) -> Iterator[None]:
    """What this thread starts meanwhile, processes and sockets, is in this namespace. Raises OSError."""
    with _back_home():
        enter_namespace(name)
        yield


@contextlib.contextmanager
def standing_apart() -> Iterator[None]:
    """The same in a network of its own that has loopback and nothing else, which nobody changes. Raises OSError."""
    with _back_home():
        _check(_LIBC.unshare(CLONE_NEWNET), "no network of its own")
        run_tool("ip", "link", "set", "lo", "up")
        yield


@contextlib.contextmanager
def standing_beside(process: int) -> Iterator[None]:
    """The same in the network of the process that this descriptor stands for (os.pidfd_open). Raises OSError."""
    with _back_home():
        _enter(process, "the process has ended")
        yield


@contextlib.contextmanager
def _back_home() -> Iterator[None]:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _enter(home, "the thread stays in another network than it began in")
        os.close(home)


def _enter(place: int, what: str) -> None:
    _check(_LIBC.setns(place, CLONE_NEWNET), what)


def _check(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


class Namespaces(ABC):
    """Namespaces `<prefix><name>`; a context manager."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def namespace(self, name: str) -> str:
        """Name of a site's namespace."""
        return f"{self.prefix}{name}"

    def __enter__(self) -> Self:
        try:
            self._build()
        except NamespaceError:
            self._remove()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self._remove()

    @abstractmethod
    def _spaces(self) -> Sequence[str]:
        """Names of all namespaces."""

    @abstractmethod
    def _build(self) -> None: ...

    def _remove(self) -> None:
        for name in self._spaces():
            with contextlib.suppress(NamespaceError):
                run_tool("ip", "netns", "del", self.namespace(name))

    def inside(self, name: str, *command: str) -> str:
        """Run a command in a namespace."""
        return run_tool("ip", "netns", "exec", self.namespace(name), *command)

    def _add_spaces(self) -> None:
        for name in self._spaces():
            run_tool("ip", "netns", "add", self.namespace(name))
            self.inside(name, "ip", "link", "set", "lo", "up")

    def _add_bridge(self, space: str) -> None:
        self.inside(space, "ip", "link", "add", "bridge0", "type", "bridge")
        self.inside(space, "ip", "link", "set", "bridge0", "up")

    def _plug_in(self, name: str, address: str, bridge_space: str) -> None:
        """Interface eth0 of `name`, at the other end of a cable p`name` in the bridge."""
        cable = f"p{name}"
        self._lay(bridge_space, cable, name, address)
        self.inside(bridge_space, "ip", "link", "set", cable, "master", "bridge0")
        self.inside(bridge_space, "ip", "link", "set", cable, "up")

    def _lay(self, space: str, cable: str, name: str, address: str) -> None:
        """A cable from `space` to eth0 of `name`, which is up and has this address."""
        ends = (cable, "type", "veth", "peer", "name", "eth0", "netns", self.namespace(name))
        self.inside(space, "ip", "link", "add", *ends)
        self.inside(name, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        self.inside(name, "ip", "link", "set", "eth0", "up")
