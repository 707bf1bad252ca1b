"""Ctrl-C before a command has begun."""

import signal
import subprocess
import sys

HANG_S = 900.0


def test_ctrl_c_while_modules_are_loaded_is_no_traceback() -> None:
    """A module that main.py imports is interrupted, as by the signal."""
    program = (
        "import sys, signal; from importlib.abc import MetaPathFinder\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # what a script runs in the background ignores it\n"
        "class Finder(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'dilocoxd.cli.exit_codes': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from dilocoxd.cli.main import main\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=HANG_S, check=False)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == b""
