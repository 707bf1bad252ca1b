"""Where ranks on a node hang: the head's question on its way there, and what they tell on its way back.

The daemon asks the process that stands for them as it asks a rank (daemon/workers/hang_dump.py), and finds the files of
all ranks in one folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dilocoxd.errors import WireError
from dilocoxd.ipc.hang_files import DUMP_SIGNAL, collectives_name, live_folder, stacks_name
from dilocoxd.ipc.sealed import SealedSocket
from dilocoxd.wire.local.node import DumpStage, HangFile


class SharedLink:
    """The connection to a node, on which several threads send."""

    def __init__(self, sealed: SealedSocket) -> None:
        self._sealed = sealed
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """From any thread. Raises OSError."""
        with self._sending:
            self._sealed.send(message)

    def receive(self, within_s: float = 0.0) -> Any:
        """See SealedSocket."""
        return self._sealed.receive(within_s)


def pass_on_questions(send: Callable[[Any], None]) -> None:
    """From now on `DUMP_SIGNAL` asks the node. Call in the main thread, which may be waiting for the node all along."""
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    signal.signal(DUMP_SIGNAL, lambda _number, _frame: None)
    signal.set_wakeup_fd(ask, warn_on_full_buffer=False)

    def serve() -> None:
        with contextlib.suppress(OSError):  # the connection has ended, which the other thread sees
            while True:
                if DUMP_SIGNAL in os.read(asked, 64):
                    send(DumpStage())

    threading.Thread(target=serve, name="hang of a node", daemon=True).start()


def keep_told(run_directory: Path, ranks: range, told: HangFile) -> None:
    """Put it where the files of the head's own ranks are. Raises WireError for a name that is none of theirs."""
    if told.name not in {each(rank) for rank in ranks for each in (stacks_name, collectives_name)}:
        raise WireError("malformed", f"{told.name!r} is no file of a rank of the node")
    folder = live_folder(run_directory)
    part = folder / f".{told.name}"
    with contextlib.suppress(OSError):  # then the folder lacks it, and nothing else is wrong
        folder.mkdir(parents=True, exist_ok=True)
        part.touch(mode=0o600)
        part.write_bytes(told.data)
        part.replace(folder / told.name)


def forget_told(run_directory: Path, ranks: range) -> None:
    """What an earlier generation told too late is no news of this one."""
    for name in (each(rank) for rank in ranks for each in (stacks_name, collectives_name)):
        with contextlib.suppress(OSError):
            (live_folder(run_directory) / name).unlink(missing_ok=True)
