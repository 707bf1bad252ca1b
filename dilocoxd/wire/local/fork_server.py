"""Messages between the daemon and its fork server (ipc/fork_server.py), one per packet of a SOCK_SEQPACKET socket.

A vocabulary of its own: workers never speak it. Descriptors travel beside the packet of `Fork` (SCM_RIGHTS).
"""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.wire.codec import Bounds, Length, Lines, Name, Registry, Uint

FORK_MESSAGE_BYTES_MAX = 1 << 16
"""Far below what a socket takes at once, so that no packet is ever cut."""

ExitStatus = Annotated[int, Bounds(-128, 255)]


@dataclass(frozen=True, slots=True)
class Preload:
    """First message to the fork server: import these modules, then say Warm."""

    modules: Annotated[tuple[Name, ...], Length(0, 64)]


@dataclass(frozen=True, slots=True)
class Warm:
    """The modules are loaded; from now on a fork takes milliseconds."""

    seconds: float
    num_threads: Uint
    """Of the fork server; more than one means that a library started threads, which no fork takes along."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Start one worker: call `main()` of `module` in a forked process, in a session of its own.

    The first descriptor becomes its standard output and error; the number of each further one is put into the
    environment under the name that stands at its place in `descriptors`."""

    number: Uint
    """Chosen by the daemon; repeated by whatever the fork server says about this worker."""
    module: Name
    mark: Name
    """What ipc/process_tree.py finds it by."""
    names: Annotated[tuple[Name, ...], Length(0, 256)]
    values: Annotated[tuple[Lines, ...], Length(0, 256)]
    """Environment variables that it has on top of the fork server's, in the order of `names`."""
    descriptors: Annotated[tuple[Name, ...], Length(0, 16)]


@dataclass(frozen=True, slots=True)
class Forked:
    """The worker runs, and carries its mark."""

    number: Uint
    pid: Uint


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """There is no such worker."""

    number: Uint
    reason: Lines


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The worker is gone. `status`: exit status; negative: killed by that signal."""

    number: Uint
    status: ExitStatus


FORK_MESSAGES = Registry(
    {2: Preload, 4: Warm, 6: Fork, 8: Forked, 10: ForkFailed, 12: WorkerExited},
    size_max=FORK_MESSAGE_BYTES_MAX,
)
