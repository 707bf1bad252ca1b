"""What a command started ends with it, however it ends, and what it put up is taken down."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

HANG_S = 900.0
WAITS = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); signal.pause()"
"""Hears no Ctrl-C, like a library in the middle of its work."""
COMMAND = """
import signal, sys, tempfile
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it, and so would we
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from dilocoxd.cli.shell.helper_ends import end_by_exception, helper
end_by_exception()
with tempfile.TemporaryDirectory(dir=sys.argv[1]):
    with helper([sys.executable, "-c", sys.argv[2]]) as process:
        process.stdout.readline()
        print(process.pid, flush=True)
        process.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_what_prepares_something_ends_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    typed = [sys.executable, "-c", COMMAND, str(tmp_path), WAITS]
    with subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        child = psutil.Process(int(command.stdout.readline()))
        command.send_signal(number)
        _, said = command.communicate(timeout=HANG_S)
    gone, _ = psutil.wait_procs([child], HANG_S)
    assert gone
    if number is not signal.SIGKILL:
        assert not list(tmp_path.iterdir())
    assert "Traceback" not in said or number is signal.SIGINT, said


def test_who_ignores_the_end_of_a_terminal_goes_on_to(tmp_path: Path) -> None:
    """`nohup dilocoxd start ...`"""
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from dilocoxd.cli.shell.helper_ends import end_by_exception; end_by_exception()\n"
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=HANG_S, check=False).returncode == 0
