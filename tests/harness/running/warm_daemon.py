"""What a forked daemon does in a test: becomes `python -m MODULE ARGUMENTS...`, which its order names (warm.py).

Its first fork server is a second fork, which waits until the daemon starts one; each further one is started as always.
Imports aside, nothing of either is replaced.
"""

import atexit
import json
import os
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dilocoxd.ipc.process_label import show_command
from dilocoxd.trainer.loop import TrainingLoop
from tests.harness.internet.namespaces import enter_namespace
from tests.harness.outer_worker.first_fork_server import take_first
from tests.harness.outer_worker.spare import Spare
from tests.harness.paced.sitecustomize import pace
from tests.harness.running.warm import ORDER_VARIABLE


def main() -> int:
    """Exit status of the command."""
    with os.fdopen(int(os.environ[ORDER_VARIABLE])) as file:
        order = json.load(file)
    return be_command(order, is_daemon=True)


def be_command(order: dict[str, Any], *, is_daemon: bool) -> int:
    """Run `python -m` with its arguments in its folder, environment and network namespace; its exit status."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    if order["namespace"]:
        enter_namespace(order["namespace"])
    arguments = order["arguments"]
    show_command((sys.executable, "-m", *arguments))
    sys.argv[:] = arguments  # runpy puts the file's name in the first place
    if is_daemon:
        pace(TrainingLoop)
        _keep_spare()
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if not isinstance(ending.code, str):
            return ending.code or 0
        sys.stderr.write(f"{ending.code}\n")
        return 1
    finally:  # as an interpreter ends
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
    return 0


def _keep_spare() -> None:
    """Fork the first fork server of this daemon, to wait until it is asked for; it ends with the daemon."""
    spare = Spare()

    def become(command: Sequence[str], environment: Mapping[str, str], stdin: int, output: int) -> Spare:
        spare.be(command, environment, stdin, output)
        return spare

    take_first(become)
