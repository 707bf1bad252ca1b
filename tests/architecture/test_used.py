"""No function or class of the product is there for tests alone: what only they need lies in tests/reference."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.architecture.test_tidy import PRODUCT, report, where

CALLED_BY_OTHERS = {
    "cli/doctor/bundle.py": {"find_class"},
    "cli/shell/grouped_help.py": {"format_commands"},
    "cli/shell/lazy_group.py": {"get_command", "list_commands"},
    "swarm/direct/channel.py": {"buffer_updated", "connection_lost", "eof_received", "pause_writing", "resume_writing"},
}
"""Methods that a library calls by their names: pickle, click, asyncio."""
FOR_TESTS = {"gradient_sum_of_squares", "leases_of"}
"""Written in words of the product, and too near to them to lie elsewhere."""


def unused(texts: Mapping[Path, str]) -> Iterator[tuple[Path, ast.AST, str]]:
    """Functions and classes without a decorator whose name stands nowhere else in any of the texts."""
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.decorator_list:
                continue
            if words[node.name] == 1 and not node.name.startswith("__"):
                yield path, node, node.name


def test_every_function_of_the_product_is_named_by_the_product() -> None:
    known = {path.as_posix().rpartition("dilocoxd/")[2]: path for path in PRODUCT}
    assert known.keys() >= CALLED_BY_OTHERS.keys()
    allowed = {(known[path], name) for path, names in CALLED_BY_OTHERS.items() for name in names}
    found = list(unused({path: path.read_text(encoding="utf-8") for path in PRODUCT}))
    assert allowed <= {(path, name) for path, _, name in found}, "named by now, or gone: take it off the list"
    report(
        [
            f"{where(path, node)}: nothing but tests can call {name}; it belongs to them (tests/reference), or goes"
            for path, node, name in found
            if (path, name) not in allowed and name not in FOR_TESTS
        ]
    )


def test_the_check_itself_finds_what_it_is_for() -> None:
    texts = {Path("a.py"): "def used(): ...\ndef unused_one(): ...\n", Path("b.py"): "from a import used\n"}
    assert [name for _, _, name in unused(texts)] == ["unused_one"]
    assert not list(unused({**texts, Path("c.py"): "unused_one()"}))
