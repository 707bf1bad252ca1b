"""What goes wrong is told in lines that a terminal need not break in mid-word; a pipe gets one line each."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import click
import pytest

from dilocoxd.answers.words import wrapped
from dilocoxd.cli.joining import join
from dilocoxd.cli.joining.newcomer import Newcomer
from dilocoxd.cli.main import cli, main
from dilocoxd.cli.run_dir.foreground import last_line
from dilocoxd.cli.shell.telling import say, tell
from dilocoxd.config.site import SiteConfig
from dilocoxd.store.rundir import open_run_dir
from tests.harness.outer_worker.daemon_end import tiny_manifest

Show = Callable[[Callable[[], object], int], list[str]]
LONG = "warning: the address in the link is private: give one that leads here with `dilocoxd run RUN --announce HOST`"


def all_of(master: int) -> bytes:
    """What comes until the other end of the terminal is closed."""
    shown = b""
    with contextlib.suppress(OSError):  # how Linux tells that it is
        while data := os.read(master, 8000):
            shown += data
    return shown


class Typed(io.StringIO):
    """A keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Lines that a terminal of so many columns shows of what a function tells."""

    def show(told: Callable[[], object], columns: int) -> list[str]:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        monkeypatch.setenv("COLUMNS", str(columns))
        with ThreadPoolExecutor(1) as reader:
            shown = reader.submit(all_of, master)  # a terminal that nobody reads is full soon
            with os.fdopen(slave, "w") as stream:
                monkeypatch.setattr(sys, "stdout", stream)
                monkeypatch.setattr(sys, "stderr", stream)
                told()
        os.close(master)
        return shown.result().decode().removesuffix("\r\n").split("\r\n")

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


FIRST = ["--host", "127.0.0.1", "--port", "31337", "--dir", "run"]
NUMBER_OF_NEXT_LINE = re.compile(r"^(B|kB|MB|GB|ms|s|min|h|d|Mbit/s)\b")


@pytest.mark.parametrize("columns", [40, 60])
@pytest.mark.parametrize(
    "typed",
    [
        ["init", "tiny", *FIRST],
        ["init", "tiny", *FIRST, "--set", f'admission.authorities=["{"8a" * 32}"]'],
        ["plan", "small", "--link", "100M", "--sites", "3"],
        ["check-config", "small"],
        ["check-config", "--explain"],
    ],
    ids=["init", "init-invite", "plan", "check-config", "explain"],
)
def test_what_the_first_commands_say_fits_a_terminal(
    on_terminal: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], columns: int
) -> None:
    """A terminal broke them in the middle of words; `start` says what `init` says, and the last line."""
    monkeypatch.chdir(tmp_path)

    def told() -> None:
        assert cli.main(typed, standalone_mode=False) == 0
        if typed[0] == "init":
            say(*last_line(open_run_dir(Path("run"))))

    shown = on_terminal(told, columns)
    long = [line for line in shown if len(line) > columns and " " in line.strip()]
    assert all(line.startswith("  dilocoxd ") for line in long), "only commands to copy are longer"
    assert not [line for line in shown if NUMBER_OF_NEXT_LINE.match(line.strip())], shown
    assert len(shown) > 5


def test_a_command_stands_whole_below_the_words_that_leave_it_no_room(on_terminal: Show) -> None:
    told = ("stopped; go on with:", "dilocoxd run 'a run of mine'")
    assert on_terminal(lambda: say(*told), 40) == ["stopped; go on with:", "  dilocoxd run 'a run of mine'"]
    assert on_terminal(lambda: say(*told), 60) == [" ".join(told)]


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


@pytest.mark.parametrize("typed", ["n\n", ""], ids=["no", "the end of what is typed"])
def test_who_does_not_want_to_join_is_told_that_nothing_was_written(
    on_terminal: Show, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr(join, "what_joining_means", lambda *_: [("run", "small-1")])
    monkeypatch.setattr(sys, "stdin", Typed(typed))
    manifest, site = tiny_manifest(), SiteConfig()

    def told() -> None:
        with pytest.raises(click.Abort):
            join.show_and_ask(manifest, site, cast("Newcomer", None), is_asked=True)

    shown = on_terminal(told, 80)
    assert shown[0] == "run        small-1"
    assert shown[-1].endswith("not joined; nothing was written here"), "what is typed here is not shown"


def test_texts_that_fit_are_left_as_they_are() -> None:
    assert wrapped("a  b", 10) == ["a  b"] and wrapped("a  b", None) == ["a  b"]
    assert wrapped("  Usage: x y", 8, 2) == ["  Usage:", "    x y"]
    assert wrapped("one ` two", 4) == ["one", "`", "two"], "one mark alone begins no command"
