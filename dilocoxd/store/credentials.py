"""Decides where secrets lie that a service manager hands over (systemd LoadCredential=, credentials in a container)."""

import os
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "CREDENTIALS_DIRECTORY"
IDENTITY: Final = "dilocoxd.identity"


def credential(name: str) -> Path | None:
    """Path of the named credential, or None if this process was given none of that name."""
    folder = os.environ.get(FOLDER_VARIABLE)
    path = Path(folder) / name if folder else None
    try:
        return path if path is not None and path.is_file() else None
    except PermissionError:
        # systemd in a container without mounts of its own makes the folder even when it has nothing to hand over, and
        # cannot give it to the service's user. A credential that was meant for us would be readable.
        return None


def is_credential(path: Path) -> bool:
    """Whether `path` was handed over: its folder is closed to others, whatever the mode of the file shows (an ACL)."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return bool(folder) and path.parent == Path(str(folder))
