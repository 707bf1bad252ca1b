"""Records a command in a terminal of its own: `python -m tests.documents.recording docs/recordings/start-small.txt`.

What the document shows is what the terminal showed, each line with the seconds since the start; nothing is written by
hand. The machine is as fresh as it can be: no cache of texts.
"""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("dilocoxd", "start", "small", "--host", "127.0.0.1", "--port", "0", "--api-port", "0", "--dir", "run")
SECONDS = 390.0
ENDING_S = 60.0
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def recorded(command: tuple[str, ...], folder: Path, seconds: float) -> list[tuple[float, str]]:
    """(seconds, line) of all that the command prints to a terminal, which gets a Ctrl-C after `seconds`."""
    master, slave = os.openpty()
    settings = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "110"}
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


def main() -> None:
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="dilocoxd-recording-") as folder:
        lines = recorded(COMMAND, Path(folder), SECONDS)
        shown = [f"{seconds:6.1f} s  {line}".rstrip().replace(folder, "~") for seconds, line in lines if line]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f"$ {' '.join(COMMAND)}\n" + "\n".join(shown) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
