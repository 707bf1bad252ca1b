"""Every refusal of the package: each ConfigError by its sentence, read from the source; and what else tells users.

Values in f-strings are shown as VALUE; of a sentence that depends on a condition, both are there.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.remedies.messages import ROOT, VALUE

VERBS: Final = (
    "add adopt ask begin bring change check choose convert copy correct delete download export fill find found free get"
    " give have install join keep leave let load lower make name pack pip put raise remove rename repeat restore"
    " run say see send set split start stop take train try undo update use vote wait write"
)
"""Imperatives that a remedy begins with."""
ASKS: Final = re.compile(
    rf"(?:^|[;:,(]|\b(?:or|and|then)) (?:then )?(?:{'|'.join(VERBS.split())})(?=[ :])|\bmust\b|did you mean"
)
"""What tells somebody what to do: an imperative behind a stop, or what a value must be."""

TELLING: Final = ("ConfigError", "StoreError", "CommandRefused", "ProblemError")
"""Errors whose sentence a user reads; test_kinds.py says why others are not."""
COMMANDS: Final = "cli/"
"""A PeerError that a command raises ends it: there is no other peer to ask."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One sentence that ends a command, or answers one that the daemon or the API was given."""

    file: str
    """Below the package."""
    line: int
    text: str

    @property
    def is_composed(self) -> bool:
        """Its end is a value, which says what to do in its place."""
        return self.text.endswith(VALUE)

    @property
    def says_what_to_do(self) -> bool:
        return ASKS.search(self.text) is not None


def refusals() -> list[Refusal]:
    """All, in the order of files and lines."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ConfigError":
                file = str(path.relative_to(ROOT))
                found += [Refusal(file, node.lineno, text) for text in _sentences(node.args[0])]
    return sorted(found, key=lambda one: (one.file, one.line))


def kinds_told_to_users() -> set[str]:
    """Names that make an error of TELLING: its class, what derives from it, and the API's short form."""
    classes = [
        node for path in ROOT.rglob("*.py") for node in ast.walk(_parsed(path)) if isinstance(node, ast.ClassDef)
    ]
    found, before = {*TELLING}, 0
    while len(found) > before:
        before = len(found)
        found |= {one.name for one in classes if any(isinstance(b, ast.Name) and b.id in found for b in one.bases)}
    return found | {"bad_request"}


def other_refusals() -> list[Refusal]:
    """Of the errors that are no ConfigError: those that say what to do, in the order of files and lines.

    A sentence that a function of the same file makes is read there.
    """
    kinds, found = kinds_told_to_users() - {"ConfigError"}, []
    for path in sorted(ROOT.rglob("*.py")):
        file, made = str(path.relative_to(ROOT)), _made_by(_parsed(path))
        here = kinds | {"PeerError"} if file.startswith(COMMANDS) else kinds
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in here and node.args:
                text = node.args[2 if node.func.id == "ProblemError" and len(node.args) > 2 else 0]
                texts = made.get(_name(text.func), [text]) if isinstance(text, ast.Call) else [text]
                said = [Refusal(file, node.lineno, one) for text in texts for one in _sentences(text)]
                found += [one for one in said if one.says_what_to_do or one.text.startswith("send ")]
    return sorted(found, key=lambda one: (one.file, one.line))


def _made_by(module: ast.Module) -> dict[str, list[ast.expr]]:
    """What each function of a file that makes a text returns."""
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    return {
        one.name: [node.value for node in ast.walk(one) if isinstance(node, ast.Return) and node.value is not None]
        for one in functions
        if isinstance(one.returns, ast.Name) and one.returns.id == "str"
    }


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _sentences(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.BinOp):
        for left in _sentences(node.left):
            yield from (left + right for right in _sentences(node.right))
    elif isinstance(node, ast.IfExp):
        yield from _sentences(node.body)
        yield from _sentences(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else VALUE for one in node.values)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        yield VALUE
