"""Decides whether the tokenizer library survives a tokenizer.json: a process of its own, with limits, reads it first.

What somebody else made can end the process that reads it, by a table that asks for more memory than there is: the
library then aborts, and raises nothing. ``python -P tried.py`` is that process, and imports nothing of the package.
With a third argument it goes on as the tokenizer of one command, in frames (limits.py): a text can end it as well.
"""

from __future__ import annotations

import array
import collections
import hashlib
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Final

MEMORY_BYTES_MAX: Final = 4 << 30
"""Several times what the largest known tokenizers take, which are 33 MB of JSON."""
SECONDS_MAX: Final = 120
"""CPU time; the largest ones take two."""
_PROBE: Final = "A few words, 123 numbers \u00e9\u4e16\u1f600\n\tand <|signs|>."
_SAID_MAX: Final = 300
_REFUSED: Final = 3
_CLOCK_OF_LIMITS: Final = ~0 << 3
"""MAKE_PROCESS_CPUCLOCK(0, CPUCLOCK_PROF) of the kernel's linux/posix-timers.h: this process, user and system ticks."""
_FRAME: Final = struct.Struct(">cQ")
"""Kind of a frame, and bytes that follow."""
GIVEN: Final = b"t"
"""A tokenizer.json, and that it is read: the first frame."""
ENCODE: Final = b"e"
"""A text, and its ids as int32."""
DECODE: Final = b"d"
"""Such ids, and their text."""
REFUSED: Final = b"!"
"""Why the library refuses, in place of an answer; the last frame."""
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
    _bound(resource.RLIMIT_DATA, memory, memory)
    if len(arguments) > 2:
        _serve(sys.stdin.buffer, sys.stdout.buffer, seconds)
        return 0
    _bound(resource.RLIMIT_CPU, seconds, seconds + 1)
    from tokenizers import Tokenizer

    with _Ending(_REFUSED, _say):
        tokenizer = Tokenizer.from_str(sys.stdin.buffer.read().decode("utf-8"))
    with _Ending(0, _say):  # words that it has no ids for are no fault: it may be made for one text alone
        tokenizer.decode(tokenizer.encode(_PROBE).ids)
    return 0


def _bound(what: int, soft: int, hard: int) -> None:
    """Have at most so much; where whoever started this process has less that stays, for only root may raise a limit."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (least(soft, before[0]), least(hard, before[1])))


def used_s() -> float:
    """CPU seconds of this process by the clock of RLIMIT_CPU, which counts the ticks that found it running.

    `time.process_time` counts how long it ran, on Linux. The two part by some percent on a busy machine, so that after
    minutes a limit of some seconds more by the one was in the past by the other.
    """
    try:
        return time.clock_gettime(_CLOCK_OF_LIMITS)
    except OSError:  # not Linux's numbers
        return time.process_time()


def least(limit: int, other: int) -> int:
    """The lower one; `other` may be none at all."""
    return limit if other == resource.RLIM_INFINITY else min(limit, other)


def send_frame(sink: IO[bytes], kind: bytes, data: bytes) -> None:
    """Write one frame. Raises OSError."""
    sink.write(_FRAME.pack(kind, len(data)) + data)
    sink.flush()


def next_frame(source: IO[bytes]) -> tuple[bytes, bytes] | None:
    """(kind, data) of the next frame; None where there is no whole one."""
    head = source.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    kind, length = _FRAME.unpack(head)
    data = source.read(length)
    return (kind, data) if len(data) == length else None


def _serve(source: IO[bytes], sink: IO[bytes], seconds: int) -> None:
    """Answer frames until there are no more, each within `seconds` of CPU time."""
    from tokenizers import Tokenizer, models

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the command, which ends this process by its end
    tokenizer = Tokenizer(models.BPE())  # until the first frame brings the one that is meant
    refuse = _Ending(_REFUSED, lambda text: send_frame(sink, REFUSED, text.encode("utf-8", "replace")))
    while (frame := next_frame(source)) is not None:
        kind, data = frame
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (least(int(used_s()) + seconds + 1, hard), hard))
        answer = b""
        with refuse:
            if kind == GIVEN:
                tokenizer = Tokenizer.from_str(data.decode("utf-8"))
                tokenizer.no_truncation()
                tokenizer.no_padding()
            elif kind == ENCODE:
                answer = array.array("i", tokenizer.encode(data.decode("utf-8")).ids).tobytes()
            else:
                answer = tokenizer.decode(array.array("i", data).tolist()).encode("utf-8")
        send_frame(sink, kind, answer)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class _Ending:
    """Whatever the library raises ends the process with `code`, and a sentence; its panics are no Exception."""

    def __init__(self, code: int, say: Callable[[str], None]) -> None:
        self._code = code
        self._say = say

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._say(str(error) or repr(error))
            os._exit(self._code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
