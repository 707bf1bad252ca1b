"""What the rooms below the commands refuse: broken in the test, refused in these words, done as they say.

Which sentences are followed is read from the tests themselves: `told(file, words)`, its kinds, and tables of `Value`.
"""

import ast
import functools
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from dilocoxd.api.responses.problems import ProblemError
from dilocoxd.errors import CommandRefused, ConfigError, PeerError, StoreError
from tests.remedies.messages import VALUE

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Value:
    """A value that is refused, and one that is as the words say."""

    file: str
    """Below the package."""
    words: str
    """Part of the sentence in the source; what is made there is VALUE."""
    call: Callable[..., Any]
    wrong: dict[str, Any]
    right: dict[str, Any]

    def follow(self) -> None:
        with told(self.file, self.words):
            self.call(**self.wrong)
        self.call(**self.right)


@contextmanager
def told(file: str, words: str, relay: str = "", kind: type[Exception] = ConfigError) -> Iterator[None]:
    """What is in the block is refused in these words; the test does then what they say.

    `relay`: the file that repeats what another process said. `kind`: of the errors that tell users what to do.
    """
    with pytest.raises(kind) as error:
        yield
    where = {str(entry.path) for entry in error.traceback}
    assert any(path.endswith(f"/dilocoxd/{relay or file}") for path in where), f"somebody else refuses: {error.value}"
    says(file, words, str(error.value))
    assert not isinstance(error.value, ConfigError) or error.value.exit_code == 78


def says(file: str, words: str, text: str) -> None:
    """`text` has the words that stand in that file, whoever shows it, and no number of the system's."""
    assert "[Errno" not in text, text
    assert re.search(".*".join(map(re.escape, words.split(VALUE))), text), f"{file} says: {text}"


stored = functools.partial(told, kind=StoreError)
commanded = functools.partial(told, kind=CommandRefused)
asked = functools.partial(told, kind=ProblemError)
failed = functools.partial(told, kind=PeerError)
"""Of commands that ask a daemon."""
answered = functools.partial(failed, relay="cli/client.py")
"""What a daemon told such a command."""
TELLERS: Final = ("told", "Value", "stored", "commanded", "asked", "failed", "answered", "says")
"""Names of what is called with a file and its words."""


@contextmanager
def full(size: int) -> Iterator[None]:
    """No file may become larger, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def followed() -> dict[tuple[str, str], str]:
    """(File, words) of all that is told here, and the test's file."""
    found = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TELLERS:
                file, words = node.args[:2]
                assert isinstance(file, ast.Constant) and isinstance(words, ast.Constant), f"{path}:{node.lineno}"
                found[str(file.value), str(words.value)] = path.name
    return found
