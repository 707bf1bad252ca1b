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
        "SIGTERM, Ctrl-C, a terminal that was closed, `dilocoxd leave`, or the command finished.",
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
        "Interrupted by Ctrl-C: a daemon by the second one, at once; another command by the first, or by a no to its"
        " question. (By SIGTERM such a command ends with 143, by SIGHUP with 129.)",
        "An operator did not want to wait.",
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
