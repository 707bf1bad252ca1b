"""Gives inner steps a shortest length: trainers that train as fast as they can leave no CPU to the other tests.

Daemons that tests fork call `pace` (tests/harness/running/warm_daemon.py). An interpreter in a container, which has
nothing of the tests but this folder, imports this file by its name when it starts; then it waits for the trainer.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

STEP_VARIABLE: Final = "DILOCOXD_TESTS_STEP_S"
"""Shortest length of an inner step, in seconds."""
LOOP: Final = "dilocoxd.trainer.loop"


def pace(loop: Any) -> None:
    """Of this TrainingLoop, by what the variable says at each step."""
    step = loop._step

    def paced(self: Any, phase: Any) -> list[Any]:
        began = time.monotonic()
        commands: list[Any] = step(self, phase)
        time.sleep(max(0.0, float(os.environ.get(STEP_VARIABLE, "0")) - (time.monotonic() - began)))
        return commands

    loop._step = paced


class PacedImport(importlib.abc.MetaPathFinder):
    """Paces the trainer's loop when it is imported, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != LOOP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            pace(module.TrainingLoop)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, PacedImport())
