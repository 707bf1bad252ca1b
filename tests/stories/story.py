"""What a story is: a name, what it shows, and the schedule that plays it; and how it becomes text."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.stories.stage import Stage

FOLDER: Final = Path(__file__).resolve().parents[2] / "protocol" / "stories"
COMMAND: Final = "make stories"
LINES_MAX: Final = 150
WIDTH: Final = 118


@dataclass(frozen=True)
class Story:
    """One transcript of protocol/stories."""

    file: str
    title: str
    rules: str
    """Rules of protocol/ that it shows, for example "R4 R6"."""
    play: Callable[[], Stage]
    """Plays it and asserts its point; its docstring is what the reader is told first."""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.file}.txt"

    def text(self) -> str:
        """The transcript. AssertionError if the story has lost its point, or an invariant is broken."""
        stage = self.play()
        stage.end()
        told = textwrap.fill(inspect.getdoc(self.play) or "", WIDTH - 4).splitlines()
        header = [self.title, "", *told, "", f"Rules: {self.rules}"]
        lines = [*(f"# {line}".rstrip() for line in header), "", *stage.teller.lines]
        return "\n".join(map(_folded, lines)) + "\n"


def _folded(line: str) -> str:
    """A line that is too long goes on below itself."""
    begins = len(line) - len(line.lstrip())
    indented = textwrap.wrap(line, WIDTH, subsequent_indent=" " * (max(begins, 10) + 4), break_long_words=False)
    return line if len(line) <= WIDTH else "\n".join(indented)


def story(file: str, title: str, rules: str) -> Callable[[Callable[[], Stage]], Story]:
    """Decorates the function that plays a story."""
    return lambda play: Story(file, title, rules, play)
