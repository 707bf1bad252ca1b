"""Follows one value through the calls of the product, file by file. Static: nothing of it is run.

Method: the walk begins at a function with one parameter. In the order in which they are computed it follows every call
that is given the value, a part of it (attribute, item, what a loop takes out of it) or a name bound to one of these,
into the function called, each function once. A call is followed when the text says what is called: a function of the
file or imported, a class, a method of `self`, of a parameter whose annotation is a class of the package, or of a name
for an attribute that __init__ builds. A stay is an unbroken stretch in one file; a return is a stay in a file that was
left before.

What a call gives back is a new value and is not followed: that counts how far a reader descends to see all that an
event meets. Given the file of the outcomes, a result of one of its classes is followed too, like the value itself, and
the reader goes back with it to each file in which it is bound or returned: that counts the whole way, from the event
down to what it leads to, back to the table of transitions, and down again to what the outcome brings about. Other
results (an answer to a question, a merged message) are leaves in both counts. Given the names of classes, a `case` for
other classes is passed over: the way of one kind of event, and of one outcome, alone.
"""

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """One function: file, and name with its class."""

    path: Path
    name: str


@dataclass
class Source:
    """What one file defines and imports."""

    path: Path
    functions: dict[str, Function] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    modules: dict[str, Path] = field(default_factory=dict)
    imported: dict[str, tuple[Path, str]] = field(default_factory=dict)


@cache
def source(path: Path) -> Source:
    """Read a file of the package."""
    found = Source(path)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, Function):
            found.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found.classes.add(node.name)
            for item in node.body:
                if isinstance(item, Function):
                    found.functions[f"{node.name}.{item.name}"] = item
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dilocoxd"):
            folder = ROOT / str(node.module).replace(".", "/")
            for alias in node.names:
                name = alias.asname or alias.name
                if (folder / f"{alias.name}.py").is_file():
                    found.modules[name] = folder / f"{alias.name}.py"
                elif folder.with_suffix(".py").is_file():
                    found.imported[name] = (folder.with_suffix(".py"), alias.name)
    return found


def _defined_in(path: Path) -> frozenset[str]:
    """Classes of a file, and the unions of them that it names."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    unions = {
        target.id
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and _names(node.value) <= classes
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return frozenset(classes | unions)


def _names(node: ast.AST) -> set[str]:
    """Last parts of all names in it."""
    found = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found | {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


class Walk:
    """The stays of one value."""

    def __init__(
        self, path: Path, function: str, parameter: str, outcomes: Path | None = None, only: Set[str] = frozenset()
    ) -> None:
        self.stays: list[Path] = []
        self._outcomes = _defined_in(outcomes) if outcomes is not None else frozenset[str]()
        self._only = only
        self._seen: set[Place] = set()
        self._results: set[ast.AST] = set()
        """Calls that were followed and give back an outcome."""
        self._enter(Place(path, function), {parameter})

    @property
    def num_returns(self) -> int:
        return len(self.stays) - len(set(self.stays))

    def _enter(self, place: Place, carried: set[str]) -> None:
        self._stay(place.path)
        if place in self._seen:
            return
        self._seen.add(place)
        function = source(place.path).functions[place.name]
        names = set(carried)
        for node in _in_order(function, self._only):
            self._bind(node, names)
            if isinstance(node, ast.Call):
                self._follow(place, function, node, names)
            if self._goes_on(node):
                self._stay(place.path)

    def _stay(self, path: Path) -> None:
        if not self.stays or self.stays[-1] != path:
            self.stays.append(path)

    def _follow(self, place: Place, function: Function, call: ast.Call, names: set[str]) -> None:
        target = _called(place, function, call.func)
        if target is None:
            return
        of = source(target.path).functions[target.name]
        parameters = [a.arg for a in (*of.args.posonlyargs, *of.args.args) if a.arg not in ("self", "cls")]
        given = {p for p, a in zip(parameters, call.args, strict=False) if self._mentions(a, names)}
        given |= {k.arg for k in call.keywords if k.arg is not None and self._mentions(k.value, names)}
        if given:
            self._enter(target, given)
            if of.returns is not None and _names(of.returns) & self._outcomes:
                self._results.add(call)

    def _goes_on(self, node: ast.AST) -> bool:
        """Whether an outcome that a call gave back is bound or returned here."""
        if isinstance(node, ast.Assign | ast.NamedExpr | ast.Return):
            return node.value is not None and self._mentions(node.value, set())
        return False

    def _mentions(self, node: ast.AST, names: set[str]) -> bool:
        """The value, a part of it, or what a followed call made of it; not what any other call makes of it."""
        if isinstance(node, ast.Call):
            return node in self._results
        if isinstance(node, ast.Name):
            return node.id in names
        return any(self._mentions(child, names) for child in ast.iter_child_nodes(node))

    def _bind(self, node: ast.AST, names: set[str]) -> None:
        """Names that hold a part of the value from here on."""
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.NamedExpr):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.For):
            pairs = [(node.target, node.iter)]
        for target, value in pairs:
            if not self._mentions(value, names):
                continue
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pieces = zip(target.elts, value.elts, strict=False)
                names.update(t.id for t, v in pieces if isinstance(t, ast.Name) and self._mentions(v, names))
            else:
                names.update(n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _in_order(function: Function, only: Set[str]) -> Iterator[ast.AST]:
    """What it computes, as it computes it: arguments before their call, a loop's names before its body."""
    for statement in function.body:
        yield from _computed(statement, only)


def _computed(node: ast.AST, only: Set[str]) -> Iterator[ast.AST]:
    if isinstance(node, ast.match_case) and only:
        kinds = {name for one in ast.walk(node.pattern) if isinstance(one, ast.MatchClass) for name in _names(one.cls)}
        if kinds and not kinds & only:
            return
    if isinstance(node, ast.For):
        yield from _computed(node.iter, only)
        yield node
        for statement in (*node.body, *node.orelse):
            yield from _computed(statement, only)
        return
    for child in ast.iter_child_nodes(node):
        yield from _computed(child, only)
    yield node


def _called(place: Place, function: Function, called: ast.expr) -> Place | None:
    """Which function this is, if the text says it."""
    here = source(place.path)
    if isinstance(called, ast.Name):
        path, name = here.imported.get(called.id, (place.path, called.id))
        return _place(path, name)
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return None
    holder = called.value.id
    if holder == "self" and "." in place.name:
        return _place(place.path, f"{place.name.split('.')[0]}.{called.attr}")
    if holder in here.modules:
        return _place(here.modules[holder], called.attr)
    kind = _kind(place, function, holder)
    if kind is None:
        return None
    path, name = here.imported.get(kind, (place.path, kind))
    return _place(path, f"{name}.{called.attr}")


def _kind(place: Place, function: Function, holder: str) -> str | None:
    """Class of a parameter by its annotation, or of a name that is bound to an attribute built in __init__."""
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if argument.arg == holder:
            return argument.annotation.id if isinstance(argument.annotation, ast.Name) else None
    begin = source(place.path).functions.get(f"{place.name.split('.')[0]}.__init__")
    built = {
        ast.unparse(node.target): node.value.func.id
        for node in (ast.walk(begin) if begin is not None else ())
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                if isinstance(target, ast.Name) and target.id == holder and ast.unparse(value) in built:
                    return built[ast.unparse(value)]
    return None


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return list(zip(target.elts, node.value.elts, strict=False))
    return [(target, node.value)]


def _place(path: Path, name: str) -> Place | None:
    functions = source(path).functions
    if f"{name}.__init__" in functions:
        name = f"{name}.__init__"
    return Place(path, name) if name in functions else None
