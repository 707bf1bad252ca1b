"""Completion as it is met: typed into a shell on a terminal, with the script that `dilocoxd completion` prints."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.harness.running.sites import wait_until
from tests.harness.running.terminals import Terminal, in_terminal

PATIENCE_S: Final = 120.0
PROMPT: Final = "READY> "


@dataclass(frozen=True, slots=True)
class Kind:
    """How a shell is started without anybody's own settings, and how it loads what `dilocoxd completion` prints."""

    command: tuple[str, ...]
    load: str
    quiet: str = "true"
    """Nothing but what commands print, and prompts behind it."""
    noise: str = r"(?!)"
    """What it draws all the same."""


KINDS: Final = {
    "bash": Kind(("bash", "--norc", "--noprofile", "-i"), 'eval "$(dilocoxd completion bash)"'),
    "zsh": Kind(
        ("zsh", "-f", "-i"),
        'eval "$(dilocoxd completion zsh)"',
        "bindkey -e; unsetopt prompt_sp prompt_cr; unset zle_bracketed_paste",
        r"\x1b\[\?2004[hl]",
    ),
    "fish": Kind(
        ("fish", "--no-config", "-C", f"function fish_prompt; echo -n '{PROMPT}'; end", "-i"),
        "dilocoxd completion fish | source",
        noise=r"\u23ce *\r\u23ce \r\r",  # where a command may have left a line half done
    ),
}


class Shell:
    """An interactive one."""

    def __init__(self, terminal: Terminal, kind: Kind) -> None:
        self._terminal = terminal
        self._noise = re.compile(kind.noise)
        self._num_read = 0
        self.wait(PROMPT)
        for number, line in enumerate((f"stty cols 200; {kind.quiet}", kind.load)):  # no line is folded
            self.type(f"{line}; echo DONE-{number}-$(echo yes)\n")
            self.wait(f"DONE-{number}-yes\n{PROMPT}")

    def type(self, keys: str) -> None:
        self._terminal.press(keys.encode())

    def wait(self, text: str) -> str:
        """All that came up to `text`."""
        wait_until(lambda: text in self._unread(), repr(text), PATIENCE_S, self._unread)
        before, _, _ = self._unread().partition(text)
        self._num_read += len(before) + len(text)
        return before

    def _unread(self) -> str:
        return self._noise.sub("", self._terminal.text)[self._num_read :]

    def completed(self, line: str) -> str:
        """What Tab makes of it; the line is not run, but written between marks."""
        self.type(f"{line}\t\x01printf '<%s>\\n' \x05\n")  # to its beginning, and to its end
        self.wait("\n<")
        words = self.wait(f"\n{PROMPT}")
        return words.replace(">\n<", "|").removesuffix(">")


@pytest.fixture(scope="module", params=KINDS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("shell")
    for name in ("good-0123", "sub/run", "two words"):
        (folder / name).mkdir(parents=True)
        (folder / name / "run.toml").write_text("")
    (folder / "games").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "ZDOTDIR": str(folder)}
    environment = {"PATH": path, "PS1": PROMPT, "INPUTRC": "/dev/null", "TERM": "dumb", **own}
    kind = KINDS[request.param]
    assert shutil.which(kind.command[0]), f"install the system package {kind.command[0]}"
    with in_terminal(list(kind.command), folder, environment) as terminal:
        yield Shell(terminal, kind)


@pytest.mark.parametrize(("line", "words"), [
    ("dilocoxd start sma", "dilocoxd|start|small"),
    ("dilocoxd start small:sparse", "dilocoxd|start|small:sparseloco"),
    ("dilocoxd init small --set outer.l", "dilocoxd|init|small|--set|outer.lr="),
    ("dilocoxd init small --set=outer.l", "dilocoxd|init|small|--set=outer.lr="),
    ("dilocoxd status g", "dilocoxd|status|good-0123"),
    ("dilocoxd run sub/", "dilocoxd|run|sub/run"),
    ("dilocoxd run two", "dilocoxd|run|two words"),
])  # fmt: skip
def test_tab_completes_presets_strategies_fields_and_run_directories(shell: Shell, line: str, words: str) -> None:
    """bash left `small:sparse` as it was, for it cuts words at colons, and made two of `two words`; zsh lost `--set=`,
    behind which fish offered nothing."""
    assert shell.completed(line) == words


def test_a_folder_is_gone_into(shell: Shell) -> None:
    """zsh takes the stroke away again when something else is typed."""
    assert shell.completed("dilocoxd run gam").removesuffix("/") == "dilocoxd|run|games"


def test_a_value_is_typed_at_once_behind_its_field(shell: Shell) -> None:
    """There was a blank behind `outer.lr=`, in zsh too."""
    assert shell.completed("dilocoxd init small --set outer.l\t0.5") == "dilocoxd|init|small|--set|outer.lr=0.5"
