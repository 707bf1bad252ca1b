"""By which loops the codecs of this installation work, without loading any: who estimates has no tensors."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[2] / "compress"


def loops_file(folder: Path) -> Path | None:
    """The compiled loops in `folder` for this version of Python (ADR 38); None: there are none."""
    paths = [folder / f"_loops{suffix}" for suffix in EXTENSION_SUFFIXES]
    return next((path for path in paths if path.exists()), None)


def has_loops() -> bool:
    """Whether compiled loops were installed with this package; without them the codecs work by torch."""
    return loops_file(_FOLDER) is not None
