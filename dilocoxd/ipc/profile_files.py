"""What daemon and trainers agree on for a profile: where its files lie. RUN_DIR/profiles has a folder for each, and so
has the folder of a stage on a node.
"""

from pathlib import Path
from typing import Final

from dilocoxd.ipc.dated_folders import keep_newest

FOLDERS_KEPT: Final = 5


def profiles_folder(run_directory: Path) -> Path:
    """Of all profiles that are kept."""
    return run_directory / "profiles"


def trace_name(stage_rank: int) -> str:
    """File with what one rank recorded: a Chrome trace, packed."""
    return f"rank{stage_rank}.json.gz"


def make_room(run_directory: Path) -> None:
    """Remove the oldest folders, so that one more makes `FOLDERS_KEPT`."""
    folder = profiles_folder(run_directory)
    if folder.is_dir():
        keep_newest((one for one in folder.iterdir() if one.is_dir()), FOLDERS_KEPT - 1)
