"""`dilocoxd data pack` killed as people kill it, by its own process id: nothing goes on behind their backs."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dilocoxd.trainer.tokens.encode import WORK
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer

pytestmark = pytest.mark.slow
NUM_FILES = 24


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_killed_command_leaves_no_process_and_goes_on_when_repeated(tmp_path: Path, how: signal.Signals) -> None:
    write_tokenizer(tmp_path)
    source, out = tmp_path / "in", tmp_path / "killed"
    source.mkdir()
    for number in range(NUM_FILES):
        write_lines(source / f"{number:02d}.jsonl", DOCUMENTS * 3)
    command = [sys.executable, "-m", "dilocoxd", "data", "pack", "--tokenizer", str(tmp_path / "tokenizer")]
    command += ["--processes", "2", str(source), str(out)]
    process = psutil.Popen(command)
    while not list((out / WORK).glob("0*.json")):
        assert process.poll() is None, "it ended before it could be killed"
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
