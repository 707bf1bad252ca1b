"""Bounds on what one text may cost: a few bytes of a stranger's table, tokenizer or chat template can ask for all
memory, and for time without end."""

from __future__ import annotations

import array
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, Literal, NoReturn, Self

from dilocoxd.cpu_time import told_after
from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens import tried
from dilocoxd.trainer.tokens.vocabulary import is_of_library, tried_text

MEMORY_BYTES_MAX: Final = 8 << 30
"""Of a process that packs: several times what the longest document takes (folders.py)."""
SECONDS_MAX: Final = 300
"""CPU time for a batch of texts, or one conversation: hundreds of times what any tokenizer needs."""
_GRACE_S: Final = 10
_SAID_MAX: Final = 300


class TakesTooLongError(ConfigError):
    """So much CPU time was not enough."""


def bound_memory() -> None:
    """Let this process have at most MEMORY_BYTES_MAX of its own; what it maps of files does not count."""
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (tried.least(MEMORY_BYTES_MAX, before), hard))


@contextmanager
def bounded_time() -> Iterator[None]:
    """Around what encodes texts.

    Raises TakesTooLongError where the block has taken SECONDS_MAX of CPU time, ConfigError where the library has no ids
    for a text, or has tried too often.

    A library that is deep in one call hears no signal: there SIGXCPU ends the process a little later, without a core.
    Not told in other threads than the first one, which hear none either.
    """
    cpu, cores = resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE)
    last = int(tried.used_s()) + SECONDS_MAX + _GRACE_S
    resource.setrlimit(resource.RLIMIT_CORE, (0, cores[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (tried.least(last, cpu[0]), cpu[1]))
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
    raise _too_long()


def _too_long() -> TakesTooLongError:
    return TakesTooLongError(
        f"a text takes its tokenizer more than {SECONDS_MAX} s of CPU time; take that text out, or give another"
        " tokenizer"
    )


class TokenizerApart:
    """The tokenizer at `path` for one command, in a process of its own, which is all that a text can end.

    A tokenizer.json that is read well may still make gigabytes of one letter, and the library then aborts, and raises
    nothing. It leaves nothing of a text out and adds nothing to it (`whole_texts`). All methods raise ConfigError.
    """

    def __init__(self, path: Path) -> None:
        text = tried_text(path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", tried.__file__, str(MEMORY_BYTES_MAX), str(SECONDS_MAX), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # an abort shows all that it was called by
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
        )
        self._asked(tried.GIVEN, text.encode("utf-8"))

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return array.array("i", self._asked(tried.ENCODE, text.encode("utf-8"))).tolist()

    def decode(self, ids: list[int]) -> str:
        """Text of such ids, without special tokens."""
        return self._asked(tried.DECODE, array.array("i", ids).tobytes()).decode("utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _asked(self, kind: bytes, data: bytes) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            tried.send_frame(self._process.stdin, kind, data)
            answer = tried.next_frame(self._process.stdout)
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise _ended(self._process.wait())
        if answer[0] == tried.REFUSED:
            raise ConfigError(
                f"a text is too much for its tokenizer ({answer[1].decode('utf-8')[:_SAID_MAX]}); take that text out,"
                " or give another tokenizer"
            )
        return answer[1]


def _ended(returncode: int) -> ConfigError:
    """Why the process of a tokenizer gave no answer."""
    if returncode == -signal.SIGXCPU:
        return _too_long()
    how = signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
    return ConfigError(
        f"a text ends the process of its tokenizer ({how}), which may take {MEMORY_BYTES_MAX >> 30} GiB of memory; take"
        " that text out, or give another tokenizer"
    )
