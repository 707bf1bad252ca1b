"""Decides how much one request may ask for; help of commands shows it, and loads no form of an answer for that."""

from typing import Final

PROFILE_STEPS: Final = 5
PROFILE_STEPS_MAX: Final = 50
"""Inner steps of one profile. A rank holds what it records in memory; more would not be looked at either."""
