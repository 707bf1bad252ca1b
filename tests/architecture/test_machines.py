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


CHANGES = (
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem"),
    *("popleft", "remove", "setdefault", "update"),
)
"""Methods that change the container to which they belong."""


def changes(function: ast.AST) -> Iterator[ast.expr]:
    """Attributes, and containers in attributes, that it assigns, deletes or calls to change."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield node
            case ast.Subscript(value=ast.Attribute(), ctx=ast.Store() | ast.Del()):
                yield node
            case ast.Call(func=ast.Attribute(value=ast.Attribute()) as method) if method.attr in CHANGES:
                yield method


def changing_queries(tree: ast.AST) -> list[str]:
    return [
        f"{change.lineno}: {node.name} changes {ast.unparse(change)}; rename it or let its caller do so"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(QUERY)
        for change in changes(node)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_query_changes_nothing(path: Path) -> None:
    found = changing_queries(ast.parse(path.read_text(encoding="utf-8")))
    assert not found, "\n" + "\n".join(f"{path.relative_to(ROOT)}:{one}" for one in found)


def test_the_check_of_queries_finds_what_it_is_for() -> None:
    for bad in ("self.a = 1", "del self.a", "self.a[1] = 2", "del self.a[1]", "self.a.pop(1)", "self.a.b.append(1)"):
        assert changing_queries(ast.parse(f"def is_so(self):\n    {bad}")), bad
        assert changing_queries(ast.parse(f"async def _has_it(self):\n    {bad}")), bad
    for good in ("found = []\n    found.append(1)", "a = self.a\n    return 1 in a", "return self.a.get(1) is None"):
        assert not changing_queries(ast.parse(f"def is_so(self):\n    {good}")), good


CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
BUILT = ("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray")
CAN_CHANGE = re.compile(rf"\b({'|'.join(BUILT)}|Mutable\w+)\b")


def is_frozen(node: ast.ClassDef) -> bool:
    return any("frozen=True" in ast.unparse(d) for d in node.decorator_list)


def is_container(value: ast.expr | None) -> bool:
    """Whether it builds one that can change: `{}`, `dict()`, `dict[str, int]()`, `collections.deque()`."""
    if not isinstance(value, ast.Call):
        return isinstance(value, CONTAINERS)
    built = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return ast.unparse(built).rpartition(".")[2] in BUILT


def mutable_attributes(node: ast.ClassDef) -> set[str]:
    """What can change after construction: attributes that are not Final, and Final ones that hold a container; of a
    frozen dataclass what is annotated as one.

    An attribute that is assigned in __init__ alone and holds an object counts at that object's class."""
    found: set[str] = set()
    fields = [i for i in node.body if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name)]
    if is_frozen(node):
        return {ast.unparse(i.target) for i in fields if CAN_CHANGE.search(ast.unparse(i.annotation))}
    if any("dataclass" in ast.unparse(d) for d in node.decorator_list):
        found |= {ast.unparse(i.target) for i in fields}
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
            for target in (t for one in targets for t in ast.walk(one)):
                is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                if isinstance(target, ast.Attribute) and is_own and ("Final" not in annotation or is_container(value)):
                    found.add(target.attr)
    return found


@pytest.mark.parametrize("path", sorted(MACHINES.rglob("*.py")), ids=lambda p: str(p.relative_to(MACHINES)))
def test_no_class_of_a_machine_holds_more_than_can_be_kept_in_mind(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            held = mutable_attributes(node)
            assert len(held) <= ATTRIBUTES_MAX, f"{node.name} holds {len(held)}: {', '.join(sorted(held))}"


def attributes_of(text: str) -> set[str]:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    return mutable_attributes(node)


def test_the_count_of_attributes_finds_what_it_is_for() -> None:
    for built in ("{}", "[]", "dict()", "dict[str, int]()", "collections.OrderedDict()", "deque[int](maxlen=4)"):
        assert attributes_of(f"class A:\n    def __init__(self): self.a: Final = {built}") == {"a"}, built
    assert attributes_of("class A:\n    def __init__(self): self.a: Final = Book()") == set(), "counts at its class"
    assert attributes_of("class A:\n    def f(self): self.a, self.b = 1, 2") == {"a", "b"}
    frozen = "@dataclass(frozen=True)\nclass A:\n    a: int\n    b: dict[str, int]\n    c: frozenset[int]"
    assert attributes_of(frozen) == {"b"}
    assert attributes_of(frozen.replace("frozen=True", "slots=True")) == {"a", "b", "c"}


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
