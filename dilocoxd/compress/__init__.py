"""Transforms and codecs of segments. `loops_file` says without loading anything by which loops the codecs work here."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def loops_file() -> Path | None:
    """The compiled loops that were installed for this version of Python (ADR 38); None: the codecs work by torch."""
    paths = [Path(__file__).parent / f"_loops{suffix}" for suffix in EXTENSION_SUFFIXES]
    return next((path for path in paths if path.exists()), None)
