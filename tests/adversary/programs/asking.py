"""How long an API takes to answer while something happens: `python -m tests.adversary.programs.asking PORT EVERY_S`.

Asks GET /healthz until its standard input ends, and once more; then prints the seconds of each answer as a JSON list.
A process of its own: in one that attacks as well, the answers wait for the attackers' turn at the interpreter.
"""

import contextlib
import json
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.harness.running.sites import PYTHON, SiteProcess


@dataclass
class Answers:
    """Seconds of each answer while a block ran."""

    seconds: list[float] = field(default_factory=list)

    @property
    def worst_s(self) -> float:
        return max(self.seconds)

    @property
    def median_s(self) -> float:
        return sorted(self.seconds)[len(self.seconds) // 2]


@contextlib.contextmanager
def asked(victim: SiteProcess, every_s: float = 0.1) -> Iterator[Answers]:
    """Ask the API all the time. Answers are there behind the block."""
    command = [*PYTHON, "tests.adversary.programs.asking", str(victim.port), str(every_s)]
    asker, found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True), Answers()
    try:
        assert asker.stdout is not None and asker.stdout.readline() == "asking\n"
        yield found
    finally:
        said, _ = asker.communicate()  # ends its input
        found.seconds += json.loads(said)


def main(port: int, every_s: float) -> int:
    """Exit code."""
    seconds, is_last = [], False
    print("asking", flush=True)
    while not is_last:  # a block shorter than the pause between two questions is asked once
        is_last = bool(select.select([sys.stdin], [], [], every_s)[0])
        began = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            answer.read()
        seconds.append(time.monotonic() - began)
    print(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
