"""Decides how a command ends that has a run directory and starts its daemon: with how to go on, whenever it is stopped.

The daemon has handlers of its own (daemon/process/stop_signals.py) only once it is imported and has read its log, which
takes seconds on a busy machine. Until then nothing runs that has to be settled, and the directory is whole.
"""

import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from dilocoxd.cli.exit_codes import DONE
from dilocoxd.cli.shell.streams import silence_output
from dilocoxd.cli.shell.telling import lines_of, say
from dilocoxd.config.manifest import load_manifest
from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import RunDir
from dilocoxd.wire.entry import genesis_hash

P = ParamSpec("P")
T = TypeVar("T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_in_foreground(run_dir: RunDir) -> int:
    """Start the daemon; its exit code, once the last line has said how to go on."""
    # Only here: the other commands answer at once because they do not load the whole daemon.
    from dilocoxd.api.server import serve_api
    from dilocoxd.daemon.app import run_daemon

    code = run_daemon(run_dir.path, serve_api)
    if code == DONE:
        try:
            say(*last_line(run_dir))
        except OSError:  # whoever closed the terminal ended the daemon, which left cleanly
            silence_output()
    return code


def last_line(run_dir: RunDir) -> tuple[str, str]:
    """After a clean end: the run is over, or it is stopped; and the command to go on with."""
    manifest = load_manifest(run_dir.run_toml)
    if manifest.run.stop_after_tokens:
        log = EntryLog(run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))
        tokens = sum(one.tokens for signed in log.entries() for one in signed.entry.contributions)
        if tokens >= manifest.run.stop_after_tokens:
            path = shown_path(run_dir.path)
            done = f"complete: the run in {path} has its {tokens:,} tokens, in {log.height} rounds"
            return f"{done}; go on with:", f"dilocoxd start --from {shlex.quote(path)}"
    return line_of_a_stop(run_dir)


def line_of_a_stop(run_dir: RunDir) -> tuple[str, str]:
    """The run is stopped; and the command to go on with."""
    return "stopped; go on with:", f"dilocoxd run {shlex.quote(shown_path(run_dir.path))}"


def shown_path(path: Path) -> str:
    """As short as it can be typed in this folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


class EarlyStop:
    """Within `with`, in the main thread: signals that come before the daemon hears them itself end the command cleanly.

    At first they do what they do to every command; from `hold` on they wait, and from `end_with` on they end it.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._told: list[int] = []
        self._last = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and self._told:
            signal.raise_signal(self._told[0])  # no daemon was to be started: as without us

    def hold(self) -> None:
        """The run directory is about to be there: who stops the command now is told so, once it can be said."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup, or in a shell's background
                self._before[number] = signal.signal(number, self._hear)

    def held_after(self, step: Callable[P, T]) -> Callable[P, T]:
        """`step`, the last one before the run directory is there, and then `hold`."""

        def stepped(*args: P.args, **kwargs: P.kwargs) -> T:
            made = step(*args, **kwargs)
            self.hold()
            return made

        return stepped

    def end_with(self, run_dir: RunDir) -> None:
        """From now on a signal says how to go on and ends the process; one that was held does so here.

        An exception would not do: who imports drops it now and then, where it meets the end of some object, and prints
        a traceback.
        """
        self.hold()
        self._last = "".join(f"{line}\n" for line in lines_of(*line_of_a_stop(run_dir))).encode()
        if self._told:
            self._end()

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self._last:
            self._end()
        if self._told and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second one means now
        self._told.append(number)

    def _end(self) -> None:
        with contextlib.suppress(OSError):  # whoever closed the terminal
            os.write(1, self._last)
        os._exit(DONE)
