"""Shape of the decision machines: nothing imports in a circle, queries change nothing, an event has a short way."""

import ast
import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from statistics import median

import pytest

from tests.architecture.walks import ROOT, Walk

PACKAGE = ROOT / "dilocoxd"
MACHINES = PACKAGE / "machines"
FILES = sorted(PACKAGE.rglob("*.py"))
QUERY = ("is_", "_is_", "has_", "_has_", "can_", "_can_")
ATTRIBUTES_MAX = 15
LINES_MEDIAN_MAX = 120
STAYS_MAX, RETURNS_MAX = 12, 4
WHOLE_STAYS_MAX, WHOLE_RETURNS_MAX = 15, 8
"""Of one event to its transition and what that brings about; the figures and why they are higher: ADR 11."""
MESSAGES = ("Abandon", "Accept", "Committed", "Leaving", "Propose", "ProposeCommit", "Ready", "ResultHashes", "Vote")
FACTS = ("PassPrepared", "ReduceFailed", "Reduced", "SegmentReceived", "SegmentSent", "TransferFailed")
OUTCOMES = ("Commit", "GiveUp", "Join", "Leave", "Recover", "TakeUp", "Told", "Violation", "VoteOn", "Waiting")


def imports(path: Path) -> set[Path]:
    """Files of the package that this one imports, wherever in the file (type checking included)."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("dilocoxd"):
            continue
        folder = ROOT / str(node.module).replace(".", "/")
        if folder.with_suffix(".py").is_file():
            found.add(folder.with_suffix(".py"))
            continue
        for alias in node.names:
            inner = folder / f"{alias.name}.py"
            found.add(inner if inner.is_file() else folder / "__init__.py")
    return found - {path}


def circles(arrows: Mapping[Path, Set[Path]]) -> list[set[Path]]:
    """Groups in which each reaches each other one."""
    reached = {node: _reach(arrows, node) for node in arrows}
    found: list[set[Path]] = []
    for node, others in reached.items():
        group = {other for other in others if node in reached.get(other, set())}
        if group and not any(node in one for one in found):
            found.append(group | {node})
    return found


def _reach(arrows: Mapping[Path, Set[Path]], start: Path) -> set[Path]:
    found: set[Path] = set()
    edge = list(arrows.get(start, ()))
    while edge:
        node = edge.pop()
        if node not in found:
            found.add(node)
            edge += arrows.get(node, ())
    return found


def room(path: Path) -> Path:
    """The folder of a file; a file beside sub-packages stands for itself, like those between which it stands."""
    has_rooms = any((child / "__init__.py").is_file() for child in path.parent.iterdir())
    return path if has_rooms else path.parent


def test_no_file_imports_itself_through_others() -> None:
    found = circles({path: imports(path) for path in FILES})
    assert not found, [sorted(str(p.relative_to(ROOT)) for p in one) for one in found]


def test_no_folder_imports_itself_through_others() -> None:
    arrows: dict[Path, set[Path]] = {}
    for path in FILES:
        arrows.setdefault(room(path), set()).update({room(other) for other in imports(path)} - {room(path)})
    found = circles(arrows)
    assert not found, [sorted(str(p.relative_to(ROOT)) for p in one) for one in found]


def stores(function: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_query_changes_nothing(path: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{store.lineno}: {node.name} assigns .{store.attr}; rename it or let its caller do so"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith(QUERY)
        for store in stores(node)
    ]
    assert not found, "\n" + "\n".join(found)


CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
BUILT = ("dict", "list", "set", "deque", "defaultdict")


def is_frozen(node: ast.ClassDef) -> bool:
    return any("frozen=True" in ast.unparse(d) for d in node.decorator_list)


def mutable_attributes(node: ast.ClassDef) -> set[str]:
    """What can change after construction: attributes that are not Final, and Final ones that hold a container.

    An attribute that is assigned in __init__ alone and holds an object counts at that object's class."""
    found: set[str] = set()
    is_dataclass = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
    if is_dataclass:
        found |= {i.target.id for i in node.body if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name)}
    for function in (i for i in node.body if isinstance(i, ast.FunctionDef)):
        for statement in ast.walk(function):
            targets: list[ast.expr] = []
            value: ast.expr | None = None
            annotation = ""
            if isinstance(statement, ast.Assign):
                targets, value = statement.targets, statement.value
            elif isinstance(statement, ast.AnnAssign):
                targets, value, annotation = [statement.target], statement.value, ast.unparse(statement.annotation)
            elif isinstance(statement, ast.AugAssign):
                targets = [statement.target]
            is_container = isinstance(value, CONTAINERS) or (
                isinstance(value, ast.Call) and ast.unparse(value.func) in BUILT
            )
            for target in (t for one in targets for t in ast.walk(one)):
                is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                if isinstance(target, ast.Attribute) and is_own and ("Final" not in annotation or is_container):
                    found.add(target.attr)
    return found


@pytest.mark.parametrize("path", sorted(MACHINES.rglob("*.py")), ids=lambda p: str(p.relative_to(MACHINES)))
def test_no_class_of_a_machine_holds_more_than_can_be_kept_in_mind(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and not is_frozen(node):
            held = mutable_attributes(node)
            assert len(held) <= ATTRIBUTES_MAX, f"{node.name} holds {len(held)}: {', '.join(sorted(held))}"


def test_half_of_the_machines_files_are_short() -> None:
    lengths = [
        len(path.read_text(encoding="utf-8").splitlines())
        for path in MACHINES.rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert median(lengths) <= LINES_MEDIAN_MAX, f"median of {len(lengths)} files is {median(lengths):g} lines"


def test_an_event_has_a_short_way() -> None:
    walk = Walk(MACHINES / "round" / "machine.py", "RoundMachine.handle", "event")
    way = " -> ".join(path.stem for path in walk.stays)
    assert len(walk.stays) <= STAYS_MAX and walk.num_returns <= RETURNS_MAX, f"{walk.num_returns} returns: {way}"
    assert {"joining", "proposals", "voting", "exchanging"} <= {path.stem for path in walk.stays}, f"lost: {way}"


@pytest.mark.parametrize("kind", [*MESSAGES, *FACTS])
def test_whole_way_of_an_event_to_what_its_outcome_brings_about_is_known(kind: str) -> None:
    found = MACHINES / "round"
    for outcome in OUTCOMES:
        only = {"MessageReceived", kind, outcome}
        walk = Walk(found / "machine.py", "RoundMachine.handle", "event", found / "outcomes.py", only)
        way = " -> ".join(path.stem for path in walk.stays)
        assert len(walk.stays) <= WHOLE_STAYS_MAX, f"{kind}, {outcome}: {way}"
        assert walk.num_returns <= WHOLE_RETURNS_MAX, f"{kind}, {outcome}: {walk.num_returns} returns, {way}"
        assert walk.stays.count(found / "machine.py") > 1 or kind in ("Accept", "Committed", "Leaving"), f"lost: {way}"


WENT = re.compile(r"^\| ([a-z, ]+?)(?: \(.*?\))? \|", re.MULTILINE)


def test_words_that_the_glossary_gave_up_are_in_no_name_of_a_machine() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    _, _, went = glossary.partition("## Words that went")
    rows = WENT.findall(went.partition("Still to go")[0])
    words = {word for row in rows for word in row.split(", ")} - {"word"}
    assert {"ballot", "stash", "outside"} <= words
    for path in sorted(MACHINES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {getattr(node, field, None) for field in ("name", "id", "attr", "arg")}
            parts = {part for name in names if isinstance(name, str) for part in name.lower().split("_")}
            assert not parts & words, f"{path.name}: {parts & words}; docs/glossary.md has another word"
