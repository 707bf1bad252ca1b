"""Completion as it is met: typed into a bash on a terminal, with the script that `dilocoxd completion bash` prints."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.running.sites import wait_until
from tests.harness.running.terminals import Terminal, in_terminal

PATIENCE_S: Final = 120.0
PROMPT: Final = "READY> "


class Bash:
    """An interactive one, without anybody's own settings."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._num_read = 0
        self.wait(PROMPT)
        self.type("stty cols 200\n")  # no line is folded
        self.wait(PROMPT)

    def type(self, keys: str) -> None:
        self._terminal.press(keys.encode())

    def wait(self, text: str) -> str:
        """All that came up to `text`."""
        wait_until(lambda: text in self._unread(), repr(text), PATIENCE_S, self._unread)
        before, _, _ = self._unread().partition(text)
        self._num_read += len(before) + len(text)
        return before

    def _unread(self) -> str:
        return self._terminal.text[self._num_read :]

    def completed(self, line: str) -> str:
        """What Tab makes of it; the line is not run, but written between marks."""
        self.type(f"{line}\t\x01printf '<%s>\\n' \x05\n")  # to its beginning, and to its end
        self.wait("\n<")
        words = self.wait(f"\n{PROMPT}")
        return words.replace(">\n<", "|").removesuffix(">")


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    folder = tmp_path_factory.mktemp("bash")
    for name in ("good-0123", "sub/run", "two words"):
        (folder / name).mkdir(parents=True)
        (folder / name / "run.toml").write_text("")
    (folder / "games").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "PS1": PROMPT, "INPUTRC": "/dev/null", "TERM": "dumb"}
    with in_terminal(["bash", "--norc", "--noprofile", "-i"], folder, environment) as terminal:
        shell = Bash(terminal)
        shell.type('eval "$(dilocoxd completion bash)"; echo LOAD$((1+1))\n')
        shell.wait("LOAD2")
        shell.wait(PROMPT)
        yield shell


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
