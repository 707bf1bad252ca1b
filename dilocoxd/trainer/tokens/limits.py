"""Bounds on what one text may cost: a few bytes of a stranger's table, tokenizer or chat template can ask for all
memory, and for time without end."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, Literal, NoReturn

from dilocoxd.cpu_time import told_after
from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.vocabulary import is_of_library

MEMORY_BYTES_MAX: Final = 8 << 30
"""Of a process that packs: several times what the longest document takes (folders.py)."""
SECONDS_MAX: Final = 300
"""CPU time for a batch of texts, or one conversation: hundreds of times what any tokenizer needs."""
_GRACE_S: Final = 10


class TakesTooLongError(ConfigError):
    """So much CPU time was not enough."""


def bound_memory() -> None:
    """Let this process have at most MEMORY_BYTES_MAX of its own; what it maps of files does not count."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_least(before, MEMORY_BYTES_MAX), hard))


@contextmanager
def bounded_time() -> Iterator[None]:
    """Around what encodes texts.

    Raises TakesTooLongError where the block has taken SECONDS_MAX of CPU time, ConfigError where the library has no ids
    for a text, or has tried too often.

    A library that is deep in one call hears no signal: there SIGXCPU ends the process a little later, without a core.
    Not told in other threads than the first one, which hear none either.
    """
    cpu, cores = resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE)
    last = int(time.process_time()) + SECONDS_MAX + _GRACE_S
    resource.setrlimit(resource.RLIMIT_CORE, (0, cores[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (_least(cpu[0], last), cpu[1]))
    try:
        with told_after(SECONDS_MAX, _tell), _TextRefusal():
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, cpu)
        resource.setrlimit(resource.RLIMIT_CORE, cores)


class _TextRefusal:
    """What the library raises of a text becomes ConfigError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if is_of_library(kind):
            raise ConfigError(
                f"a text is too much for its tokenizer ({error}); take that text out, or give another tokenizer"
            ) from error
        return False


def _tell(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TakesTooLongError(
        f"a text takes its tokenizer more than {SECONDS_MAX} s of CPU time; take that text out, or give another"
        " tokenizer"
    )


def _least(limit: int, other: int) -> int:
    return other if limit == resource.RLIM_INFINITY else min(limit, other)
