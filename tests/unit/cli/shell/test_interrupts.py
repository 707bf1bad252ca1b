"""Ctrl-C before a command has begun, and in one that a shell repeats."""

import shlex
import signal
import subprocess
import sys

import pytest

HANG_S = 900.0
COMMAND = (
    "import os, signal, click, dilocoxd.cli.main as program\n"
    "@click.command()\n"
    "def cli():\n"
    "{}\n"
    "program.cli = cli\n"
    "program.main()"
)
"""A command whose lines stand for the braces, with the ends that all have."""


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


@pytest.mark.parametrize(
    "pressed",
    [
        " os.killpg(0, signal.SIGINT)",
        " try: os.killpg(0, signal.SIGINT)\n except KeyboardInterrupt: return 130",  # as `generate`
        " click.termui.visible_prompt_func = lambda _: os.killpg(0, signal.SIGINT)\n click.confirm('Go on?')",
    ],
    ids=["at work", "told by the command", "at a question"],
)
def test_ctrl_c_ends_the_loop_of_a_shell_too(pressed: str) -> None:
    """A shell goes on with its loop where a command makes an exit code of the signal: `until dilocoxd status ...`."""
    command = shlex.join([sys.executable, "-c", COMMAND.format(pressed)])
    ended = subprocess.run(
        ["bash", "-c", f"for number in 1 2; do {command}; echo goes on; done"],
        capture_output=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        timeout=HANG_S,
        check=False,
    )
    assert ended.stdout == b""
    assert ended.returncode == -signal.SIGINT, ended.stderr


def test_a_no_is_no_signal() -> None:
    command = [sys.executable, "-c", COMMAND.format(" raise click.Abort")]
    ended = subprocess.run(command, timeout=HANG_S, check=False)
    assert ended.returncode == 130
