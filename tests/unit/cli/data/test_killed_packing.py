"""`dilocoxd data pack` killed as people kill it, by its own process id: nothing goes on behind their backs."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dilocoxd.trainer.tokens.encode import WORK
from tests.harness.running.terminals import INTERRUPT, in_terminal
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

pytestmark = pytest.mark.slow
NUM_FILES = 24
LOOK_S = 0.01


def packing(folder: Path) -> tuple[list[str], Path, Path]:
    """The command, what it reads and what it makes."""
    write_tokenizer(folder)
    source, out = folder / "in", folder / "killed"
    source.mkdir()
    for number in range(NUM_FILES):
        write_lines(source / f"{number:02d}.jsonl", DOCUMENTS * 3)
    command = [sys.executable, "-m", "dilocoxd", "data", "pack", "--tokenizer", str(folder / "tokenizer")]
    return [*command, "--processes", "2", str(source), str(out)], source, out


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_killed_command_leaves_no_process_and_goes_on_when_repeated(tmp_path: Path, how: signal.Signals) -> None:
    command, source, out = packing(tmp_path)
    process = psutil.Popen(command)
    while not list((out / WORK).glob("0*.json")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(LOOK_S)
    below = process.children(recursive=True)
    process.send_signal(how)
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=900)
    assert not alive
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "pieces were packed before" in again.stderr
    whole = packed(tmp_path, [source], name="whole", held=0.01)
    assert json.loads(again.stdout.splitlines()[-1])["sha256"] == whole.index.sha256()


def test_ctrl_c_is_no_traceback_and_gives_the_cursor_back(tmp_path: Path) -> None:
    """Each process of the terminal's group told where it had been, some hundred lines."""
    command, _, out = packing(tmp_path)
    with in_terminal(command, tmp_path, {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}) as terminal:
        while not list((out / WORK).glob("0*.json")):
            assert terminal.process.poll() is None, terminal.text
            time.sleep(LOOK_S)
        below = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.press(INTERRUPT)
        assert terminal.wait(900) == -signal.SIGINT  # 130 in a shell
    assert not psutil.wait_procs(below, timeout=900)[1]
    assert "Traceback" not in terminal.text and "rror" not in terminal.text
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")


def test_disk_that_refuses_is_a_failure_as_for_every_command(tmp_path: Path) -> None:
    """It was exit code 74, which no page knows."""
    command, _, _ = packing(tmp_path)
    ended = subprocess.run(
        command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)),
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert b"free space" in ended.stderr and b"Traceback" not in ended.stderr
