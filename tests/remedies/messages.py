"""Every sentence of the package that names a command or an option of dilocoxd.

Read from the source: what is told to people stands in string literals that are neither docstrings nor declarations of
options. Values in f-strings are shown as VALUE.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dilocoxd

ROOT: Final = Path(dilocoxd.__file__).resolve().parent
VALUE: Final = "VALUE"
COMMAND: Final = re.compile(r"`dilocoxd ([^`]+)`|(?:^|\n|:|  )\s*dilocoxd (?!itself)([a-z][^\n;,()]*)")
"""In backquotes, or on a line of its own, or after a colon or a gap; `dilocoxd itself` is prose."""
NAMES: Final = ("dilocoxd anchor", "dilocoxd data")
"""Literals that nobody is told: what certificates of data connections are called."""
OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
FOREIGN: Final = {
    "--query-gpu": "nvidia-smi", "--format": "nvidia-smi", "--shm-size": "docker run", "--local-dir": "hf download",
    "--max": "string split of fish",
}  # fmt: skip
"""Options of other programs, by option."""


@dataclass(frozen=True, slots=True)
class Message:
    """One literal: where it stands, and what it says."""

    where: str
    """File below the package, and line."""
    text: str

    @property
    def commands(self) -> list[str]:
        """What follows the word `dilocoxd` in each command."""
        return [one or other for one, other in COMMAND.findall(self.text)]

    @property
    def options(self) -> list[str]:
        """Options of dilocoxd, also those within commands."""
        return [option for option in OPTION.findall(self.text) if option not in FOREIGN]


def messages() -> list[Message]:
    """All that name a command or an option, in the order of files and lines."""
    found: list[Message] = []
    for path in sorted(ROOT.rglob("*.py")):
        for line, text in _literals(ast.parse(path.read_text(encoding="utf-8"))):
            found.append(Message(f"{path.relative_to(ROOT)}:{line}", text))
    return [one for one in found if one.commands or one.options]


def _literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(_part(value) for value in node.values)
        for value in node.values:  # literals within the values
            if isinstance(value, ast.FormattedValue):
                yield from _literals(value.value)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if not _is_declaration(node.value):
            yield node.lineno, node.value
        return
    for child in ast.iter_child_nodes(node):
        yield from _literals(child)


def _part(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else VALUE


def _is_declaration(text: str) -> bool:
    """An option by itself, or with its opposite, where it is declared or compared; or a name."""
    return text in NAMES or re.fullmatch(r"--[a-z0-9-]+(/--[a-z0-9-]+)?", text) is not None
