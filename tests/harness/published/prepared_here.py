"""Weights are read and texts prepared in this process, where torch is loaded already, and not in those that `dilocoxd
start` starts.

The same programs with the same arguments; to load torch and transformers once more takes several times as long as the
rest of a test. Who tests those processes themselves leaves this out.
"""

import io
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import Any
from unittest import mock

from dilocoxd.cli.shell import helper_ends
from dilocoxd.trained.incoming import first_state
from dilocoxd.trainer import prepare

PROGRAMS = {program.__name__: program.main for program in (first_state, prepare)}


class _Ended:
    """What there is of a process that has ended."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        assert command[1] == "-m"
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(self.stdout), redirect_stderr(self.stderr):
            self.returncode = PROGRAMS[command[2]](command[3:])
        self.stdout.seek(0)
        self.stderr.seek(0)

    def __enter__(self) -> "_Ended":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        """It has ended already."""


@contextmanager
def prepared_here() -> Iterator[None]:
    """As long as it lasts."""
    library = SimpleNamespace(Popen=_Ended, PIPE=subprocess.PIPE)
    with mock.patch.object(helper_ends, "subprocess", library):
        yield
