"""Makes a forked process look like one of its own: its mark in /proc/PID/environ, its command in /proc/PID/cmdline.

Both files show memory of the process as exec left it, which a fork copies, whatever `os.environ` says. So the label is
written into that memory, in place: the value of one variable, long enough from the start (`padded`), and the arguments.
Nothing else moves, because libraries keep pointers to other variables.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dilocoxd.ipc.process_tree import TREE_VARIABLE

MARK_BYTES: Final = 192
"""Room for a mark and what workers append to it."""
_STAT = Path("/proc/self/stat")
_ARG_START: Final = 45
"""Place of arg_start (proc(5): field 48) behind the command's name, which may hold blanks; then arg_end, env_start
and env_end."""


def padded(mark: str) -> str:
    """The mark as a process must have it from its start, if its forks are to get marks of their own.

    The slashes behind it change nothing for `find_tree`: a slash ends a mark. Raises ValueError if it is too long.
    """
    if len(mark) > MARK_BYTES or not mark.isascii():
        raise ValueError(f"mark {mark!r} is longer than {MARK_BYTES} characters, or not ASCII")
    return mark.ljust(MARK_BYTES, "/")


def show_mark(mark: str) -> None:
    """Replace the padded mark of this process. Raises ValueError if it was not started with one."""
    _, _, start, end = _bounds()
    found = ctypes.string_at(start, end - start)
    name = TREE_VARIABLE.encode() + b"="
    offset = 0 if found.startswith(name) else found.find(b"\0" + name) + 1
    value = offset + len(name)
    if not found.startswith(name, offset) or found.find(b"\0", value) - value < MARK_BYTES:
        raise ValueError(f"this process was not started with a padded {TREE_VARIABLE}")
    ctypes.memmove(start + value, padded(mark).encode("ascii"), MARK_BYTES)


def show_command(command: Sequence[str]) -> None:
    """What `ps` shows for this process, cut to the room that its first command line had."""
    start, end, _, _ = _bounds()
    room = end - start
    shown = b"\0".join(word.encode("utf-8", "surrogateescape") for word in command)[: room - 1]
    ctypes.memmove(start, shown.ljust(room, b"\0"), room)


def _bounds() -> tuple[int, int, int, int]:
    fields = _STAT.read_text("ascii", "replace").rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[_ARG_START : _ARG_START + 4])
    return arg_start, arg_end, env_start, env_end
