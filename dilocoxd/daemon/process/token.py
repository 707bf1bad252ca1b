"""The bearer token for control: made once, kept in a file that only the owner can read. Moves text, decides nothing."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError, reason_of

TOKEN_BYTES: Final = 32
FILE_BYTES_MAX: Final = 4096
CHARACTERS_MIN: Final = 16


def load_or_create_token(path: Path) -> str:
    """The token in `path`, made first (mode 0600) if there is none. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return load_token(path)
    except OSError as error:
        raise ConfigError(
            f"api.token_file: {path} cannot be made ({error.strerror}); give a writable place, or make it yourself"
        ) from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return load_token(path)


def load_token(path: Path) -> str:
    """The token in `path`. Raises ConfigError if it is unreadable, readable by everybody, or too short."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"api.token_file: {path} cannot be read ({reason_of(error)}); check path and owner"
        ) from error
    if mode & 0o007:
        raise ConfigError(f"api.token_file: {path} has mode {mode:04o}, everybody can use it; run: chmod 600 {path}")
    if len(text) < CHARACTERS_MIN or not text.isprintable() or " " in text:
        raise ConfigError(
            f"api.token_file: {path} holds no token of at least {CHARACTERS_MIN} letters and digits; delete the file"
            " to get a new one"
        )
    return text
