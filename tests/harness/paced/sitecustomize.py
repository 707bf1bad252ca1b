"""Gives inner steps a shortest length: trainers that train as fast as they can leave no CPU to the other tests.

Daemons that tests fork call `pace` (tests/harness/running/warm_daemon.py). An interpreter in a container, which has
nothing of the tests but this folder, imports this file by its name when it starts; then it waits for the trainer, or
for the library of a loop of somebody's own.
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
STEPS: Final = {"dilocoxd.trainer.loop": ("TrainingLoop", "_step"), "dilocoxd.library.site": ("Site", "step")}
"""Module -> class and method of an inner step: of our trainers, and of a loop of somebody's own."""


def pace(stepping: type, name: str = "_step") -> None:
    """The method of this name, by what the variable says at each step."""
    step = getattr(stepping, name)

    def paced(*given: Any, **named: Any) -> Any:
        began = time.monotonic()
        found = step(*given, **named)
        time.sleep(max(0.0, float(os.environ.get(STEP_VARIABLE, "0")) - (time.monotonic() - began)))
        return found

    setattr(stepping, name, paced)


class PacedImport(importlib.abc.MetaPathFinder):
    """Paces what makes steps when it is imported, once: a process has one of them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in STEPS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            stepping, step = STEPS[name]
            pace(getattr(module, stepping), step)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, PacedImport())
