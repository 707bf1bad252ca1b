"""Sizes of what a result records of its shares behind its payload, and of how long it counts (C9)."""

from typing import Final

NORMS_KEPT: Final = 8
"""Entries whose recorded norms a group of two is measured against."""
NUMBER_BYTES: Final = 2
"""Of one bf16 number in a record and in the memory of norms; the first one of a record is its norm."""
