"""Messages between the daemon and any of its local workers (unix socket, 0600).

The daemon asks, workers answer; a worker speaks first only in `Hello`, in progress reports and when a trainer reaches
a boundary. Every buffer is a memfd created by the daemon and passed once with `Attach` (SCM_RIGHTS).
"""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.wire.codec import Length, Lines, Name, Uint

# --- any worker -> daemon -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """First message of a worker. `role`: `outer` or `trainer`."""

    role: Name
    pid: Uint
    generation: Uint
    stage_rank: Uint
    num_stages: Uint


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A request could not be done and nothing changed, or the worker is about to exit. `kind` is a short code."""

    request: Uint
    kind: Name
    detail: Lines


@dataclass(frozen=True, slots=True)
class WorkerAlive:
    """Sign of life about once a second from a worker that is busy: what it does and how far it is (0..1000).

    `doing` empty: what it said before."""

    doing: Name
    per_mille: Uint


# --- daemon -> any worker -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """Descriptors of these buffers come with this message, in this order; map them by size."""

    names: Annotated[tuple[Name, ...], Length(1, 32)]
    sizes: Annotated[tuple[Uint, ...], Length(1, 32)]


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish what is being written and exit 0."""
