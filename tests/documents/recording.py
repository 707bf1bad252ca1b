"""Records a command in a terminal of its own: `python -m tests.documents.recording` writes docs/lab/start-small.md.

What the page shows is what the terminal showed, each line with the seconds since the start; nothing is written by
hand. The machine is as fresh as it can be: no cache of texts. What the lines must keep: test_recording.py.
"""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("dilocoxd", "start", "small", "--host", "127.0.0.1", "--port", "0", "--api-port", "0", "--dir", "run")
SECONDS = 390.0
ENDING_S = 60.0
DOCUMENT = ROOT / "docs" / "lab" / "start-small.md"
LINE = re.compile(r"^ *(\d+\.\d) s  (.*)$", re.M)
PAGE = """# Lab book: the first minutes in a terminal

Recorded by `python -m tests.documents.recording`, which types the command into a terminal of {columns} columns
and writes down what it shows, with the seconds since the start; at the end it presses Ctrl-C. The text is not in
the cache. {cores} cores; load of the machine by other work when it began: {load:.0f}.

{told}

```
$ {command}
{shown}
```
"""
COLUMNS = 110
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def recorded(command: tuple[str, ...], folder: Path, seconds: float) -> list[tuple[float, str]]:
    """(seconds, line) of all that the command prints to a terminal, which gets a Ctrl-C after `seconds`."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    settings = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    settings["XDG_CACHE_HOME"] = str(folder / ".cache")
    process = subprocess.Popen(
        command, cwd=folder, env=settings, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    started, text, found, is_told = time.monotonic(), "", [], False
    while (passed := time.monotonic() - started) < seconds + ENDING_S:
        if passed > seconds and not is_told:
            process.send_signal(signal.SIGINT)
            is_told = True
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            text += os.read(master, 65536).decode("utf-8", "replace")
        except OSError:
            break  # nobody holds the terminal any more
        *whole, text = text.split("\n")
        found += [(time.monotonic() - started, ESCAPE.sub("", line).rstrip()) for line in whole]
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.close(master)
    return found


@dataclass(frozen=True)
class Figures:
    """What somebody who watches asks of the first minutes, in seconds."""

    moves: float
    """Until the first line."""
    data: float
    """Until the text is tokenised."""
    step: float
    """Until the first inner step is shown."""
    silence: float
    """The longest time between two lines."""

    @classmethod
    def of(cls, lines: list[tuple[float, str]]) -> Self:
        """Of a whole recording. StopIteration if it does not come to the first step."""
        times = [at for at, _ in lines]
        data = next(at for at, line in lines if "held-out tokens in" in line)
        step = next(at for at, line in lines if "step 1/" in line)
        return cls(times[0], data, step, max(later - earlier for earlier, later in pairwise(times)))


def page(lines: list[tuple[float, str]], load: float) -> str:
    """The document; `load`: of the machine, before the command."""
    seen = Figures.of(lines)
    told = (
        f"Something moves after {seen.moves:.1f} s, the text is ready after {seen.data:.1f} s, the first inner step is"
        f" shown {seen.step - seen.data:.1f} s later. The longest silence is {seen.silence:.1f} s."
    )
    shown = "\n".join(f"{at:6.1f} s  {line}".rstrip() for at, line in lines)
    command = " ".join(COMMAND)
    return PAGE.format(command=command, columns=COLUMNS, cores=os.cpu_count(), load=load, told=told, shown=shown)


def lines_of(document: str) -> list[tuple[float, str]]:
    """The recording on a page."""
    return [(float(at), line) for at, line in LINE.findall(document)]


def main() -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dilocoxd-recording-") as folder:
        found = recorded(COMMAND, Path(folder), SECONDS)
        lines = [(at, line.replace(folder, "~")) for at, line in found if line]
    DOCUMENT.write_text(page(lines, load), encoding="utf-8")


if __name__ == "__main__":
    main()
