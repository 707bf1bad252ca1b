"""`dilocoxd node` as a process of its own on this machine, and what runs below it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dilocoxd.ipc.process_tree import TREE_VARIABLE, is_descendant
from tests.harness.outer_worker.forks import ForkedProcess
from tests.harness.running.sites import PYTHON, wait_until
from tests.harness.running.warm import WARM_VARIABLE, fork_daemon

END_S = 30.0
WAIT_S = 180.0


def _runs(pid: int, module: bytes) -> bool:
    with contextlib.suppress(OSError):
        return module in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _started(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: int, namespace: str
) -> subprocess.Popen[bytes] | ForkedProcess:
    """A fork of what is loaded already, as the daemons of tests are; else a program."""
    if os.environ.get(WARM_VARIABLE):
        return fork_daemon(command, folder, environment, log, namespace)
    inside = ("ip", "netns", "exec", namespace) if namespace else ()  # replaces itself: same pid
    return subprocess.Popen((*inside, *PYTHON, *command), stdout=log, stderr=log, env=environment)


class NodeProcess:
    """Running from the start; `end` when the test is done with it."""

    def __init__(
        self, head: str, key: Path, directory: Path, num_parts: int = 1, num_stages: int = 0, namespace: str = ""
    ) -> None:
        """`head`: address and port; `namespace`: of the network, none if empty. What it prepares of a text lies beside
        `directory`, in a place of its own."""
        self.log = directory.with_name(f"{directory.name}.log")
        command: tuple[str, ...] = ("dilocoxd", "node", head, "--key", str(key), "--dir", str(directory))
        command += ("--parts", str(num_parts), *(("--stages", str(num_stages)) if num_stages else ()))
        environment = {name: value for name, value in os.environ.items() if name != TREE_VARIABLE}
        environment["DILOCOXD_CACHE"] = str(directory.with_name(f"{directory.name}-cache"))
        with self.log.open("ab") as log:
            self.process = _started(command, directory.parent, environment, log.fileno(), namespace)

    @property
    def pid(self) -> int:
        return self.process.pid

    def parts(self) -> list[int]:
        """Pids of the outer parts that run on it."""
        return self._running(b"outerworker.main")

    def trainers(self) -> list[int]:
        """Pids of the trainers that run on it."""
        return self._running(b"dilocoxd.trainer.main")

    def _running(self, module: bytes) -> list[int]:
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return sorted(pid for pid in pids if _runs(pid, module) and is_descendant(pid, self.pid))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, looking now and then: nothing of it is told to us."""
        wait_until(condition, what, WAIT_S, self.said)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """As a power cut ends it: without a word."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Exit status after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)


@contextlib.contextmanager
def node_process(
    port: int,
    key: Path,
    directory: Path,
    num_parts: int = 1,
    *,
    num_stages: int = 0,
    host: str = "127.0.0.1",
    namespace: str = "",
) -> Iterator[NodeProcess]:
    """One that is gone afterwards, whatever happened."""
    node = NodeProcess(f"{host}:{port}", key, directory, num_parts, num_stages, namespace)
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.kill()
