"""How wide the terminal is behind a stream, if one is."""

import os
from typing import TextIO


def columns_of(stream: TextIO) -> int | None:
    """Its width in characters; None: it is no terminal, or one that does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None
