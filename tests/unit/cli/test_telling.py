"""What goes wrong is told in lines that a terminal need not break in mid-word; a pipe gets one line each."""

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from dilocoxd.answers.words import wrapped
from dilocoxd.cli.main import main
from dilocoxd.cli.shell.telling import tell

Show = Callable[[Callable[[], object], int], list[str]]
LONG = "warning: the address in the link is private: give one that leads here with `dilocoxd run RUN --announce HOST`"


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Lines that stderr shows, as a terminal of so many columns, of what a function tells."""

    def show(told: Callable[[], object], columns: int) -> list[str]:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(slave, "w") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            told()
        shown = b""
        with contextlib.suppress(OSError):  # how Linux tells that the other end of a terminal is closed
            while data := os.read(master, 8000):
                shown += data
        os.close(master)
        return shown.decode().removesuffix("\r\n").split("\r\n")

    return show


@pytest.mark.parametrize("columns", [30, 60, 100])
def test_lines_break_between_words_and_commands_stay_whole(on_terminal: Show, columns: int) -> None:
    shown = on_terminal(lambda: tell(LONG), columns)
    assert " ".join(line.strip() for line in shown) == LONG
    assert all(line.startswith("  ") for line in shown[1:])
    command = "`dilocoxd run RUN --announce HOST`"
    (whole,) = (line for line in shown if command in line)
    assert all(len(line) <= columns for line in shown if line != whole)
    assert len(whole) <= columns or whole.strip() == command, "what is longer than the terminal stands alone"


def test_pipe_and_terminal_that_does_not_tell_its_width_get_one_line(
    on_terminal: Show, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(f"{LONG}\n{LONG}")
    assert capsys.readouterr().err == f"{LONG}\n{LONG}\n"
    assert on_terminal(lambda: tell(LONG), 0) == [LONG]


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        (["run", "nowhere"], 78),
        (["start", "tiny", "--set", "inner.lr=2", "--set", "model.seqlen=3"], 78),
        (["export", "--out"], 2),
        (["rnu", "here"], 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_errors_of_commands_fit_a_terminal(
    on_terminal: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dilocoxd", *typed])
    ended: list[object] = []

    def told() -> None:
        with pytest.raises(SystemExit) as caught:
            main()
        ended.append(caught.value.code)

    shown = on_terminal(told, 40)
    assert ended == [code] and len(shown) > 1
    assert all(len(line) <= 40 or " " not in line.strip().partition("`")[0] for line in shown), shown


def test_texts_that_fit_are_left_as_they_are() -> None:
    assert wrapped("a  b", 10) == ["a  b"] and wrapped("a  b", None) == ["a  b"]
    assert wrapped("  Usage: x y", 8, 2) == ["  Usage:", "    x y"]
    assert wrapped("one ` two", 4) == ["one", "`", "two"], "one mark alone begins no command"
