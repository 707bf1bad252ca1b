"""Decides what the exit codes of all commands mean; `dilocoxd --help` and the runbook are made from this table."""

from dataclasses import dataclass
from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
CONFIG: Final = 78
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class ExitCode:
    """One code for people."""

    code: int
    meaning: str
    cause: str
    remedy: str


EXIT_CODES: Final = (
    ExitCode(
        DONE,
        "Done; the daemon left cleanly; `doctor` found nothing that stops training.",
        "SIGTERM, `dilocoxd leave`, or the command finished.",
        "None.",
    ),
    ExitCode(
        FAILED,
        "Failed: the daemon had to leave, no daemon answers, a log or snapshot is damaged, `doctor` found an error.",
        "One sentence on stderr says which.",
        "Follow that sentence; for a daemon, the newest alert in `RUN_DIR/logs/events.jsonl`. A service manager may"
        " restart it.",
    ),
    ExitCode(
        USAGE, "Wrong usage of the command line.", "An unknown command or option.", "See `dilocoxd COMMAND --help`."
    ),
    ExitCode(
        CONFIG,
        "The configuration must be changed.",
        "run.toml, site.toml, a key, a token, a certificate or a port cannot be used; stderr names file, field, value.",
        "Correct it, check with `dilocoxd check-config RUN_DIR`. A service manager must not restart it by itself.",
    ),
    ExitCode(
        INTERRUPTED,
        "Ended at once by a second SIGINT (Ctrl-C twice).",
        "An operator did not want to wait for the graceful leave.",
        "None; the next start catches up from snapshot and log.",
    ),
)


def epilog() -> str:
    """One line for `--help`."""
    words = {
        DONE: "done", FAILED: "failed", USAGE: "wrong usage", CONFIG: "the configuration must be changed",
        INTERRUPTED: "interrupted",
    }  # fmt: skip
    return "Exit codes: " + ", ".join(f"{row.code} {words[row.code]}" for row in EXIT_CODES) + "."
