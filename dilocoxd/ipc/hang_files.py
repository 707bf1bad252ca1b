"""What daemon and trainers agree on for a hang: the signal that asks a rank for its dump, and where the files lie.

RUN_DIR/logs/hangs/now has the files of the living ranks; after a hang the daemon moves them to a folder of their own.
"""

import signal
from pathlib import Path
from typing import Final

DUMP_SIGNAL: Final = signal.SIGUSR1
TIMEOUT_PREFIX: Final = "nccl-timeout-"
"""Of the files that NCCL's own watchdog writes; it appends the rank."""


def hangs_folder(run_directory: Path) -> Path:
    """Of all hangs that are kept."""
    return run_directory / "logs" / "hangs"


def live_folder(run_directory: Path) -> Path:
    """Of the ranks that run now."""
    return hangs_folder(run_directory) / "now"


def stacks_name(rank: int) -> str:
    """Python stacks of all threads; written by the signal alone, whatever the process is stuck in."""
    return f"stacks-{rank}.txt"


def collectives_name(rank: int) -> str:
    """What torch's flight recorder has of the newest collectives; the last file that a rank writes."""
    return f"collectives-{rank}.json"


def timeout_name(rank: int) -> str:
    """What NCCL's watchdog writes of the collectives when one takes too long, as a pickle, before it ends the rank."""
    return f"{TIMEOUT_PREFIX}{rank}"


def names_of(rank: int) -> tuple[str, ...]:
    """All files of one rank."""
    return (stacks_name(rank), collectives_name(rank), timeout_name(rank))
