"""Daemons as forks of a process that has loaded all that they and their workers import, one for each test process.

A daemon, and its fork server, need three seconds of CPU each for their imports, in hundreds of starts. The process that
forks them is the product's own fork server. Tests of start times, of memory, or of what a daemon imports start theirs
cold: `site.cold = True`.
"""

import atexit
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dilocoxd.daemon.settings import FAMILY_MODULES
from dilocoxd.daemon.workers.forked import PIPELINE_MODULE
from tests.harness.outer_worker.forks import ForkedProcess, Forks, Launch
from tests.harness.paced.sitecustomize import STEP_VARIABLE as STEP_VARIABLE

WARM_VARIABLE: Final = "DILOCOXD_TESTS_FORK"
"""Set for all that tests start (tests/conftest.py)."""
ORDER_VARIABLE: Final = "DILOCOXD_TESTS_ORDER"
"""Number of the descriptor of a file that holds the order."""
CONTROL_VARIABLE: Final = "DILOCOXD_TESTS_CONTROL"
"""Number of the descriptor of a fork server's socket."""
DAEMON: Final = "tests.harness.running.warm_daemon"
FORK_SERVER: Final = "tests.harness.outer_worker.first_fork_server"
MODULES: Final = (
    # hivemind's parts without torch first: loaded behind torch they would be others than a daemon has
    *("dilocoxd.cli.main", "dilocoxd.daemon.app", "dilocoxd.api.server", "uvloop"),
    # the last: what a site of several stages would load each time, a second of CPU
    *("dilocoxd.outerworker.main", "dilocoxd.trainer.main", DAEMON, PIPELINE_MODULE),
)

_forks: Forks | None = None
_launches: list[Launch] = []


def keep_launch(launch: Launch) -> None:
    """What the next fork server of this process is started by."""
    _launches.append(launch)


def fork_daemon(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: int, namespace: str
) -> ForkedProcess:
    """What `python -m ARGUMENTS` would be, in a session of its own; `namespace`: of the network; none if empty."""
    return fork_ordered(DAEMON, arguments, folder, environment, {}, output=output, namespace=namespace)


def fork_ordered(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    passed: Mapping[str, int],
    *,
    output: int,
    namespace: str = "",
) -> ForkedProcess:
    """A fork that runs `main()` of `module`, which becomes `python -m ARGUMENTS` (warm_daemon.be_command)."""
    order = {"arguments": [*arguments], "folder": str(folder), "environment": {**environment}, "namespace": namespace}
    return _fork_with(order, module, passed, output)


def fork_fork_server(
    command: Sequence[str], environment: Mapping[str, str], control: int, output: int
) -> ForkedProcess:
    """The fork server that `command` would be, for a site in this process, with the socket `control`."""
    order = {"command": [*command], "environment": {**environment}}
    return _fork_with(order, FORK_SERVER, {CONTROL_VARIABLE: control}, output)


def _fork_with(order: Mapping[str, object], module: str, passed: Mapping[str, int], output: int) -> ForkedProcess:
    place = os.memfd_create("order")
    try:
        os.write(place, json.dumps(order).encode())
        os.lseek(place, 0, os.SEEK_SET)
        return fork(module, {ORDER_VARIABLE: place, **passed}, output=output)
    finally:
        os.close(place)


def fork(module: str, passed: Mapping[str, int], *, output: int) -> ForkedProcess:
    """A process of everything loaded that runs `main()` of `module`, with these descriptors."""
    return _running_forks().start(module, {}, output=output, passed=passed)


def load_families() -> None:
    """Daemons forked from now on need not import what models of transformers do."""
    _running_forks().load(*FAMILY_MODULES)


def end_forks() -> None:
    """The next daemon is forked by a process that begins then, in the network in which this one is then."""
    global _forks
    if _forks is not None:
        atexit.unregister(_forks.__exit__)
        _forks.__exit__()
        _forks = None


def _running_forks() -> Forks:
    global _forks
    if _forks is None or not _forks.is_alive:  # one that died is the fault of the test that ran then
        _forks = Forks(*MODULES, launch=_launches.pop() if _launches else None).__enter__()
        atexit.register(_forks.__exit__)
        assert _forks.num_threads == 1, "a fork would take one thread along, and not the others"
    return _forks
