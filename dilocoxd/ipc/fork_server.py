"""Forks workers from a process that has their modules loaded already: ``python -m dilocoxd.ipc.fork_server FOLDER``.

Standard input is the daemon's socket (wire/local/fork_server.py); its end is ours, and the kernel ends the workers with
us. FOLDER only tells a reader of `ps` whose it is. Knows no worker and no tensor: modules come by name.
Why not exec, and why not torch's agent: docs/adr/0009-workers-are-forked-warm.md.

Rules that keep a fork safe: one thread, no device opened, no descriptor but the socket; all of it holds because nothing
is called here but `import`.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

from dilocoxd.ipc.child import die_with_parent
from dilocoxd.ipc.process_label import show_command, show_mark
from dilocoxd.ipc.process_tree import TREE_VARIABLE
from dilocoxd.wire.local.fork_server import (
    FORK_MESSAGE_BYTES_MAX,
    FORK_MESSAGES,
    Fork,
    Forked,
    ForkFailed,
    Preload,
    Warm,
    WorkerExited,
)

_DESCRIPTORS_MAX: Final = 16
_EXIT_FAILED: Final = 1
_READY: Final = b"+"


class _Server:
    """The loop. Everything that a fork must close or undo is a field."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers: dict[int, int] = {}
        """Living worker's pid -> its number."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # only so that the pipe below wakes us
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the daemon closes its end."""
        waiting = select.poll()
        control = self._control.fileno()
        waiting.register(control, select.POLLIN)
        waiting.register(self._wake_read, select.POLLIN)
        while True:
            readable = {descriptor for descriptor, _ in waiting.poll()}
            if self._wake_read in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                self._bury()
            if control in readable and not self._obey():
                return

    def _say(self, message: Any) -> None:
        self._control.sendall(FORK_MESSAGES.encode(message))

    def _obey(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, FORK_MESSAGE_BYTES_MAX, _DESCRIPTORS_MAX)
        if not data:
            return False
        message = FORK_MESSAGES.decode(data)
        if isinstance(message, Preload):
            self._say(_preload(message.modules))
        else:
            assert isinstance(message, Fork), f"the daemon sent {type(message).__name__} to the fork server"
            self._say(self._fork(message, descriptors))
        return True

    def _fork(self, order: Fork, descriptors: list[int]) -> Forked | ForkFailed:
        ready, child_ready = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            return ForkFailed(order.number, f"cannot fork: {error}")
        else:
            if pid == 0:
                os.close(ready)
                self._close_in_worker()
                _become_worker(order, descriptors, child_ready, server)
            self._numbers[pid] = order.number
        finally:
            for descriptor in (child_ready, *descriptors):
                os.close(descriptor)
            is_ready = os.read(ready, 1) == _READY
            os.close(ready)
        return Forked(order.number, pid) if is_ready else ForkFailed(order.number, "it ended before it was set up")

    def _close_in_worker(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _bury(self) -> None:
        """Tell the end of every worker that has ended.

        Of several found at one look those that a signal killed come first: the kernel names them in the order of their
        start, and the others may have ended because those were gone.
        """
        ended: list[tuple[int, int]] = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append(found)
        for pid, status in sorted(ended, key=lambda one: not os.WIFSIGNALED(one[1])):
            self._say(WorkerExited(self._numbers.pop(pid), os.waitstatus_to_exitcode(status)))


def _preload(modules: tuple[str, ...]) -> Warm:
    started = time.monotonic()
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a worker shall not write to, and so copy, the pages that all share
    warm = Warm(time.monotonic() - started, len(list(Path("/proc/self/task").iterdir())))
    sys.stderr.write(f"loaded {', '.join(modules)} in {warm.seconds:.1f} s; threads: {warm.num_threads} (1 is right)\n")
    return warm


def _become_worker(order: Fork, descriptors: list[int], ready: int, server: int) -> NoReturn:
    """In the forked process: be what the order says, then leave without the fork server's own exit."""
    code = _EXIT_FAILED
    try:
        os.setsid()
        die_with_parent(server)
        output, *passed = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.update(zip(order.names, order.values, strict=True))
        os.environ[TREE_VARIABLE] = order.mark
        os.environ.update(zip(order.descriptors, map(str, passed), strict=True))
        show_command((sys.executable, "-m", order.module))
        show_mark(order.mark)
        os.write(ready, _READY)
        os.close(ready)
        code = importlib.import_module(order.module).main()
    finally:
        failure = sys.exception()
        if isinstance(failure, SystemExit) and isinstance(failure.code, int):
            code = failure.code
        elif failure is not None:
            traceback.print_exception(failure)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Serve the daemon whose socket is standard input."""
    die_with_parent(os.getppid())
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        _Server(control).serve()
    except ConnectionError:
        return _EXIT_FAILED  # the daemon died before it heard what we had to say
    return 0


if __name__ == "__main__":
    sys.exit(main())
