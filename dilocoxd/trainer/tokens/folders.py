"""What lies in a folder that a user gives: every file, or a sentence that names what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from dilocoxd.errors import ConfigError


def files_below(folder: Path) -> list[Path]:
    """All files of `folder` and its folders, sorted; links to files too, even if they lead nowhere.

    Raises ConfigError for a folder that cannot be listed: what is in it must not be left out in silence.
    """
    found = [Path(where, name) for where, _, names in os.walk(folder, onerror=_refuse) for name in names]
    return sorted(path for path in found if path.is_symlink() or path.is_file())


def require_text(data: bytes, path: Path) -> None:
    """Refuse bytes that are no text though they may be UTF-8. Raises ConfigError."""
    place = data.find(b"\0")
    if place >= 0:
        raise ConfigError(f"{path}: byte {place} is zero, so this is no text; take that file out, or convert it")


def _refuse(error: OSError) -> NoReturn:
    raise ConfigError(f"{error.filename}: cannot be listed ({error.strerror}); give a readable folder") from error
