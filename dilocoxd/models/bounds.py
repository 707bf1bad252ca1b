"""Bounds on what a library may make of somebody else's config.json: memory, CPU time, and what it raises.

A config.json comes with a manifest from a peer. What a field of it does in a library nobody here has looked at: one
that is multiplied with another asks for all memory, and most wrong values end in an exception of any kind.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Literal, NoReturn, Self

from dilocoxd.cpu_time import told_after
from dilocoxd.errors import ConfigError, DilocoxdError

MEMORY_BYTES_MAX: Final = 2 << 30
"""On top of what the process has: a tiny model takes some megabytes, as does a large one without its values."""
SECONDS_MAX: Final = 120
"""CPU time; a thousand layers take three seconds."""
SAID_MAX: Final = 300
NO_MEMORY: Final = ("can't allocate memory", "bad_alloc", "std::length_error")


class LibraryBounds:
    """Around what a library does with a config of `model_type`: whatever it raises there, and a lack of memory or time,
    is ConfigError. In the first thread of a process, for others hear no timer."""

    def __init__(self, model_type: str) -> None:
        self._model_type = model_type
        self._data = resource.getrlimit(resource.RLIMIT_DATA)
        self._time = told_after(SECONDS_MAX, self.too_long)

    def __enter__(self) -> Self:
        soft, hard = self._data
        most = _data_bytes() + MEMORY_BYTES_MAX
        least = most if soft == resource.RLIM_INFINITY else min(soft, most)
        resource.setrlimit(resource.RLIMIT_DATA, (least, hard))
        self._time.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._time.__exit__(None, None, None)
        resource.setrlimit(resource.RLIMIT_DATA, self._data)
        if isinstance(error, Exception) and not isinstance(error, DilocoxdError):
            if isinstance(error, MemoryError) or any(word in str(error) for word in NO_MEMORY):
                raise ConfigError(
                    f"a tiny {self._model_type} of this config.json takes more than {MEMORY_BYTES_MAX >> 30} GiB of"
                    f" memory; correct that field, or use the config.json of a whole model"
                ) from error
            raise ConfigError(
                f"transformers cannot use this config.json of a {self._model_type}: {said(error)}; correct that field,"
                " or use the config.json of a whole model"
            ) from error
        return False

    def too_long(self, _number: int, _frame: FrameType | None) -> NoReturn:
        """Handler of the timer. Raises ConfigError."""
        raise ConfigError(
            f"a tiny {self._model_type} of this config.json takes more than {SECONDS_MAX} s of CPU time; correct that"
            " field, or use the config.json of a whole model"
        )


def said(error: Exception) -> str:
    """What a library says, on one line of bounded length; it may quote megabytes of the config."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= SAID_MAX else f"{text[:SAID_MAX]}..."


def _data_bytes() -> int:
    """What RLIMIT_DATA counts of this process (proc(5), statm: data and stack)."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE")
