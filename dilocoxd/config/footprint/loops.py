"""By which loops the codecs of this installation work, without loading any: who estimates has no tensors."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[2] / "compress"


def loops_file() -> Path | None:
    """The compiled loops that were installed for this version of Python (ADR 38); None: the codecs work by torch."""
    paths = [_FOLDER / f"_loops{suffix}" for suffix in EXTENSION_SUFFIXES]
    return next((path for path in paths if path.exists()), None)
