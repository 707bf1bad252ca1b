"""What a terminal obeys, and how wide the one behind a stream is, if one is."""

import os
import re
from typing import Final, TextIO

CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What could drive a terminal, forge a line of a log, or show text in another order than it has (rule E9)."""


def columns_of(stream: TextIO) -> int | None:
    """Its width in characters; None: it is no terminal, or one that does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None
