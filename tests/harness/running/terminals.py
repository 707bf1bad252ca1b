"""A command in a real terminal: what it shows, and keys pressed in it, Ctrl-C above all."""

import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERRUPT = b"\x03"
"""What Ctrl-C sends; the terminal makes SIGINT of it, for every process of its foreground group."""


class Terminal:
    """One command as the foreground job of a pseudo-terminal of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return self._shown.decode("utf-8", "replace").replace("\r\n", "\n")

    def press(self, key: bytes) -> None:
        """As somebody at the keyboard does."""
        os.write(self._master, key)

    def wait(self, timeout_s: float) -> int:
        """Exit code, once the command is over and all that it said is in `text`."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # the last process has closed its end
                return
            if not data:
                return
            self._shown += data


@contextmanager
def in_terminal(command: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """`command` in `folder`; killed at the end if it still runs."""
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, preexec_fn=lambda: _in_the_foreground(slave)
        )
    finally:
        os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _in_the_foreground(slave: int) -> None:
    """Of the terminal, as a shell starts a job; a script in the background has Ctrl-C ignored, and so would we."""
    os.login_tty(slave)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
