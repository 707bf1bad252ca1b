"""Completion as it is met: typed into a bash on a terminal, with the script that `dilocoxd completion bash` prints."""

import os
import pty
import select
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PATIENCE_S: Final = 120.0
PROMPT: Final = "READY> "


class Bash:
    """An interactive one in a folder, without anybody's own settings."""

    def __init__(self, folder: Path) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            environment = {**os.environ, "PATH": path, "PS1": PROMPT, "INPUTRC": "/dev/null", "TERM": "dumb"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        termios.tcsetwinsize(self._terminal, (24, 200))  # no line is folded
        self._seen = ""
        self.wait(PROMPT)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait(self, text: str) -> str:
        """All that came up to `text`."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come, but {self._seen!r}"
            self._seen += os.read(self._terminal, 4096).decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def completed(self, line: str) -> str:
        """What Tab makes of it; the line is not run, but written between marks."""
        self.type(f"{line}\t\x01printf '<%s>\\n' \x05\n")  # to its beginning, and to its end
        self.wait("\r\n<")
        words = self.wait(f"\r\n{PROMPT}")
        return words.replace(">\r\n<", "|").removesuffix(">")

    def close(self) -> None:
        os.close(self._terminal)  # hangs it up
        os.waitpid(self._pid, 0)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    folder = tmp_path_factory.mktemp("bash")
    for name in ("good-0123", "sub/run", "two words"):
        (folder / name).mkdir(parents=True)
        (folder / name / "run.toml").write_text("")
    (folder / "games").mkdir()
    shell = Bash(folder)
    shell.type('eval "$(dilocoxd completion bash)"; echo LOAD$((1+1))\n')
    shell.wait("LOAD2")
    shell.wait(PROMPT)
    yield shell
    shell.close()


@pytest.mark.parametrize(("line", "words"), [
    ("dilocoxd start sma", "dilocoxd|start|small"),
    ("dilocoxd start small:sparse", "dilocoxd|start|small:sparseloco"),
    ("dilocoxd init small --set outer.l", "dilocoxd|init|small|--set|outer.lr="),
    ("dilocoxd init small --set=outer.l", "dilocoxd|init|small|--set=outer.lr="),
    ("dilocoxd status g", "dilocoxd|status|good-0123"),
    ("dilocoxd run sub/", "dilocoxd|run|sub/run"),
    ("dilocoxd run gam", "dilocoxd|run|games/"),
    ("dilocoxd run two", "dilocoxd|run|two words"),
])  # fmt: skip
def test_tab_completes_presets_strategies_fields_and_run_directories(bash: Bash, line: str, words: str) -> None:
    """`small:sparse` was left as it was, for bash cuts words at colons; `two words` became two."""
    assert bash.completed(line) == words


def test_a_value_is_typed_at_once_behind_its_field(bash: Bash) -> None:
    """There was a blank behind `outer.lr=`."""
    assert bash.completed("dilocoxd init small --set outer.l\t0.5") == "dilocoxd|init|small|--set|outer.lr=0.5"
