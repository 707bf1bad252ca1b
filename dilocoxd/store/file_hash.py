"""What a file is named by: the sha256 of its bytes."""

import hashlib
from pathlib import Path


def file_sha256(path: Path) -> bytes:
    """sha256 of the file, 32 bytes; read piece by piece. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
