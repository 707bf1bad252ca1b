"""A folder whose sockets have names that the kernel takes: at most 107 bytes, the folder's own name included."""

import os
import tempfile
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError

SOCKET_PATH_BYTES_MAX: Final = 107
"""Of a socket in the file system (unix(7)): 108 with the zero at its end."""
PREFIX: Final = "dilocoxd-"
_RANDOM_BYTES: Final = 8
"""What tempfile adds to the prefix."""


def has_room(folder: Path, name_bytes: int) -> bool:
    """Whether a socket with a name of so many bytes can be in it."""
    return len(os.fsencode(folder)) + len("/") + name_bytes <= SOCKET_PATH_BYTES_MAX


def short_parent(name_bytes: int) -> Path:
    """Where a private folder may be made (`PREFIX`, tempfile) so that socket names of `name_bytes` fit in it.

    The folder for temporary files as the user has it, unless its own name is too long. XDG_RUNTIME_DIR is the last
    choice: it is removed when its user logs out, and a daemon may outlive that. Raises ConfigError.
    """
    wanted = Path(tempfile.gettempdir())
    below = len(PREFIX) + _RANDOM_BYTES + len("/") + name_bytes
    for folder in (wanted, *(Path(one) for one in ("/tmp", os.environ.get("XDG_RUNTIME_DIR")) if one)):
        if has_room(folder, below) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise ConfigError(
        f"no folder for sockets: the names of the run directory and of {wanted} are too long; set TMPDIR to a folder"
        f" of at most {SOCKET_PATH_BYTES_MAX - below - 1} bytes that this user may write to"
    )
