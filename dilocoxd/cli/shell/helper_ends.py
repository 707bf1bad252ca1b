"""Why a process that prepares something for a command ended without a word of its own."""

import signal


def cause_of(returncode: int, last: str) -> str:
    """In words, from its exit status and its last line on stderr, which is the exception if it ended by one."""
    if returncode == -signal.SIGKILL:
        return "it was killed, probably for lack of memory"
    if returncode < 0 or not last:
        return f"it ended with status {returncode}"
    return last
