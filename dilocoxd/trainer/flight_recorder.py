"""Tells where a rank hangs: stacks of all threads, and the newest collectives with their state, into files.

`DUMP_SIGNAL` asks for it: the daemon before it ends trainers that are silent (daemon/workers/hang_dump.py), or a person
who wonders: training goes on. Stacks are written inside the signal handler, so that a rank that is stuck in C code and
holds the interpreter lock tells them too. Torch's flight recorder (gloo and NCCL) is read by a thread, which needs that
lock: a rank that waits in a collective does not hold it. Numbers are not touched.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dilocoxd.ipc.hang_files import (
    DUMP_SIGNAL,
    TIMEOUT_PREFIX,
    collectives_name,
    live_folder,
    names_of,
    stacks_name,
)

log = logging.getLogger(__name__)

SHOWN: Final = 100
"""Newest collectives in the file; torch remembers 2000 unless TORCH_FR_BUFFER_SIZE says otherwise."""
_RECORDERS: Final = {"cpu": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
"""Backend -> function of torch that tells its record; a torch without that backend has no such function."""


def start_recording(run_directory: Path, rank: int) -> None:
    """From now on `DUMP_SIGNAL` makes this process write its dump. Call in the main thread, before the process group.

    Raises OSError when the run directory cannot be written.
    """
    folder = live_folder(run_directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names_of(rank):
        (folder / name).unlink(missing_ok=True)
    # Where step_timeout_s is longer than the time-out of a collective, NCCL's own watchdog is the first to notice.
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / TIMEOUT_PREFIX))
    stacks = os.open(folder / stacks_name(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    # The order matters: faulthandler calls the handler that it found, which is Python's, and that writes to the pipe.
    signal.signal(DUMP_SIGNAL, lambda _number, _frame: None)
    signal.set_wakeup_fd(ask, warn_on_full_buffer=False)
    faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True, chain=True)
    threading.Thread(target=_serve, args=(asked, folder, rank), name="flight-recorder", daemon=True).start()


def _serve(asked: int, folder: Path, rank: int) -> None:
    while True:
        if DUMP_SIGNAL in os.read(asked, 64):
            try:
                write_collectives(folder, rank)
            except OSError as error:
                log.warning("the collectives could not be written: %s", error)


def write_collectives(folder: Path, rank: int) -> None:
    """Write what torch recorded, replacing what was written before: whole or not at all. Raises OSError."""
    part = folder / f".{collectives_name(rank)}"
    part.touch(mode=0o600)
    part.write_text(json.dumps(recorded(), indent=1), encoding="utf-8")
    part.replace(folder / collectives_name(rank))


def recorded() -> dict[str, Any]:
    """Backend -> its newest collectives, with their state; only backends that this torch has.

    As JSON, so without the stacks of each: for those torch would load its compiler, which takes seconds.
    """
    import torch._C._distributed_c10d as c10d

    found = {}
    for backend, name in _RECORDERS.items():
        dump: Callable[[], bytes] | None = getattr(c10d, name, None)
        if dump is not None:
            record = json.loads(dump())
            found[backend] = {**record, "entries": record.get("entries", [])[-SHOWN:]}
    return found
