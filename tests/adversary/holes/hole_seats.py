"""Without rule R6.10: the seats of a group go by the order of the ids."""

from dilocoxd.machines.round import grouping


def apply() -> None:
    """Who sorts first sits first."""
    grouping._seniors_first = lambda gathered, usable, limits: sorted(usable)
