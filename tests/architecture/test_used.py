"""No function, class or constant of the product is there for tests alone: what only they need lies in tests/reference.

A name in a comment or a docstring uses nothing, and neither does a function that calls itself.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.architecture.test_tidy import PRODUCT, report, where

CALLED_BY_OTHERS = {
    "api/connections.py": {"connection_made"},
    "cli/doctor/bundle.py": {"find_class"},
    "cli/shell/grouped_help.py": {"format_commands"},
    "cli/shell/lazy_group.py": {"get_command", "list_commands", "resolve_command", "shell_complete"},
    "swarm/direct/channel.py": {
        *("buffer_updated", "connection_lost", "connection_made", "eof_received", "pause_writing", "resume_writing"),
    },
    "swarm/p2pd/hints.py": {"validate"},
    "swarm/p2pd/process.py": {"_log_p2pd_message", "_make_process_args", "add_protobuf_handler"},
    "trainer/optimizer.py": {"add_param_group"},
    "trainer/parallel/timed_stage.py": {
        *("backward_one_chunk", "backward_weight_one_chunk", "forward_one_chunk"),
        *("forward_maybe_with_nosync", "perform_reduce_grad"),
    },
}
"""Methods that a library calls by their names: pickle, click, asyncio, hivemind, torch."""
FOR_TESTS = {"gradient_sum_of_squares", "leases_of", "num_streams", "STANDING", "TIMERS"}
"""Written in words of the product, and too near to them to lie elsewhere; tables are compared with the protocol's."""
PLAIN_DECORATORS = {
    *("cache", "cached_property", "classmethod", "contextmanager", "dataclass", "property", "staticmethod"),
}
"""Any other decorator may hand what it decorates to somebody: a command, a validator."""
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]+")
WORD = re.compile(r"[\w./:-]+")
MENTIONS_MAX = 4
"""What names itself so often is not looked at."""


def names_in(tree: ast.AST) -> Counter[str]:
    """How often each name is used: as a name, an attribute, an import, or the text of a one-word string (a table of
    commands or handlers names its functions so). Definitions, docstrings and comments use nothing."""
    found: Counter[str] = Counter()
    said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Load()):
                found[node.id] += 1
            case ast.Attribute():
                found[node.attr] += 1
            case ast.alias():
                found[node.name] += 1
            case ast.MatchClass():
                found.update(node.kwd_attrs)
            case ast.Constant(value=str() as text) if WORD.fullmatch(text) and node not in said:
                found.update(re.findall(r"\w+", text))
    return found


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """Last parts of their names."""
    called = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return {ast.unparse(one).rpartition(".")[2] for one in called}


def defined(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Functions and classes that nothing but their name leads to, and the constants of the module."""
    for node in ast.walk(tree):
        is_named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_named and decorators(node) <= PLAIN_DECORATORS and not node.name.startswith("__"):
            yield node.name, node
    for node in tree.body:
        target = (
            node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else 0
        )
        if isinstance(target, ast.Name) and CONSTANT.fullmatch(target.id):
            yield target.id, node


def unused(texts: Mapping[Path, str]) -> Iterator[tuple[Path, ast.AST, str]]:
    """What is defined in one of these texts and used in none of them, but by itself."""
    trees = {path: ast.parse(text) for path, text in texts.items()}
    used: Counter[str] = Counter()
    for tree in trees.values():
        used.update(names_in(tree))
    for path, tree in trees.items():
        for name, node in defined(tree):
            if used[name] == 0 or (used[name] < MENTIONS_MAX and used[name] == names_in(node)[name]):
                yield path, node, name


def test_everything_of_the_product_is_used_by_the_product() -> None:
    known = {path.as_posix().rpartition("dilocoxd/")[2]: path for path in PRODUCT}
    assert known.keys() >= CALLED_BY_OTHERS.keys()
    allowed = {(known[path], name) for path, names in CALLED_BY_OTHERS.items() for name in names}
    found = list(unused({path: path.read_text(encoding="utf-8") for path in PRODUCT}))
    assert allowed <= {(path, name) for path, _, name in found}, "named by now, or gone: take it off the list"
    assert {name for _, _, name in found} >= FOR_TESTS, "used by now, or gone: take it off the list"
    report(
        [
            f"{where(path, node)}: nothing but tests can use {name}; it belongs to them (tests/reference), or goes"
            for path, node, name in found
            if (path, name) not in allowed and name not in FOR_TESTS
        ]
    )


def test_the_check_itself_finds_what_it_is_for() -> None:
    a = '"""unused_one"""\ndef used(): ...\ndef unused_one():\n    """`Unused`."""\n    unused_one()\n'
    b = "from a import used\n@dataclass(slots=True)\nclass Unused: ...\nUNUSED_TOO: Final = 1  # UNUSED_TOO\n"
    c = "class A:\n    @property\n    def unused_size(self): ...\n    @command()\n    def run(self): ...\nA()\n"
    texts = {Path("a.py"): a, Path("b.py"): b, Path("c.py"): c}
    found = [name for _, _, name in unused(texts)]
    assert found == ["unused_one", "Unused", "UNUSED_TOO", "unused_size"]
    user = "unused_one()\nfind('a:Unused', UNUSED_TOO)\nthing.unused_size\n"
    assert not list(unused({**texts, Path("d.py"): user}))
