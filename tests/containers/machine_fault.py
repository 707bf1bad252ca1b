"""Whether the machine failed or a promise: faults of the engine are tried again, and named if they stay.

Only what the engine does to a container is tried again (freeze it, plug it in, remove it), and only when it says one of
a few things that have nothing to do with what runs inside. What a test waits for is never tried again.
"""

import re
import subprocess
import time
from collections.abc import Callable

TRIES = 4
PAUSE_S = 2.0
"""Before the second try; twice as long before each further one: 14 s in all for the machine to become calmer."""
FAULTS = {
    # The kernel's freezer gives up when a thread stays in the kernel too long, as on a machine with too much to do.
    "pause": r"unable to freeze|freezer|resource busy",
    "unpause": r"unable to (thaw|freeze)|freezer|resource busy",
    "rm": r"removal of container .* is already in progress|resource busy|did not receive an exit event",
    "network": r"resource busy|has active endpoints|could not find network sandbox",
}
"""Command of the docker client -> what it says when not it but the machine was at fault."""


class MachineFaultError(Exception):
    """The machine could not do its part, several times in a row; nothing is known about the promise under test."""


def is_machine_fault(command: str, said: str) -> bool:
    """Whether a docker command failed for the machine's sake."""
    pattern = FAULTS.get(command)
    return pattern is not None and re.search(pattern, said, re.I) is not None


def attempted(command: str, action: Callable[[], str], say: Callable[[str], None], *, pause_s: float = PAUSE_S) -> str:
    """Result of the action, which raises AssertionError with all that docker said; up to TRIES times, each told.

    Raises MachineFaultError if the machine failed every time, and passes every other error on at once.
    """
    for number in range(1, TRIES + 1):
        try:
            return action()
        except AssertionError as error:
            said = str(error)
            if not is_machine_fault(command, said):
                raise
        except subprocess.TimeoutExpired as error:
            if command not in FAULTS:
                raise
            said = str(error)
        say(f"the machine's fault, try {number} of {TRIES}: docker {command}: {said.strip().splitlines()[-1][:300]}")
        if number < TRIES:
            time.sleep(pause_s * 2 ** (number - 1))
    raise MachineFaultError(f"docker {command} failed {TRIES} times for the machine's sake: {said[-1000:]}")
