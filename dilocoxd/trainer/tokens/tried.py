"""Decides whether the tokenizer library survives a tokenizer.json: a process of its own, with limits, reads it first.

What somebody else made can end the process that reads it, by a table that asks for more memory than there is: the
library then aborts, and raises nothing. ``python -P tried.py`` is that process, and imports nothing of the package.
"""

from __future__ import annotations

import collections
import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Final

MEMORY_BYTES_MAX: Final = 4 << 30
"""Several times what the largest known tokenizers take, which are 33 MB of JSON."""
SECONDS_MAX: Final = 120
"""CPU time; the largest ones take two."""
_PROBE: Final = "A few words, 123 numbers \u00e9\u4e16\u1f600\n\tand <|signs|>."
_SAID_MAX: Final = 300
_REFUSED: Final = 3
_KNOWN: Final[collections.deque[bytes]] = collections.deque(maxlen=64)
"""Hashes of texts that were survived: each piece of a text to pack reads the same tokenizer."""


def fault_of(text: str) -> str:
    """Why the library cannot be given this tokenizer.json, or nothing."""
    data = text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).digest()
    if digest in _KNOWN:
        return ""
    done = subprocess.run(
        [sys.executable, "-P", __file__, str(MEMORY_BYTES_MAX), str(SECONDS_MAX)],
        input=data,
        capture_output=True,
        check=False,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
    )
    if done.returncode == 0:
        _KNOWN.append(digest)
        return ""
    if done.returncode == _REFUSED:
        return " ".join(done.stdout.decode("utf-8", "replace").split())[:_SAID_MAX]
    return _end_of(done.returncode)


def _end_of(returncode: int) -> str:
    if returncode == -signal.SIGXCPU:
        return f"reading it takes more than {SECONDS_MAX} s of CPU time"
    if returncode < 0:
        return f"the library ends with {signal.Signals(-returncode).name} while it reads it"
    return f"the library cannot be tried with it: exit code {returncode}"


def survived() -> tuple[bytes, ...]:
    """For `remember` in a process that this one starts."""
    return tuple(_KNOWN)


def remember(known: Iterable[bytes]) -> None:
    """What the process that started this one has tried need not be tried again."""
    _KNOWN.extend(known)


def main(arguments: Sequence[str]) -> int:
    """Read the tokenizer at stdin and use it once; why it cannot be on stdout."""
    memory, seconds = int(arguments[0]), int(arguments[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    from tokenizers import Tokenizer

    with _Ending(_REFUSED):
        tokenizer = Tokenizer.from_str(sys.stdin.buffer.read().decode("utf-8"))
    with _Ending(0):  # words that it has no ids for are no fault: it may be made for one text alone
        tokenizer.decode(tokenizer.encode(_PROBE).ids)
    return 0


class _Ending:
    """Whatever the library raises ends the process with `code`, and a sentence; its panics are no Exception."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            sys.stdout.write(str(error) or repr(error))
            sys.stdout.flush()
            os._exit(self._code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
