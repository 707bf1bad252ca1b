"""Types say what is meant (docs/style.md, rule 24): no mapping to Any between parts that people build on."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.test_tidy import ROOT, parsed, python_files, report, where

TYPED_FLOORS = ("dilocoxd/daemon", "dilocoxd/api", "dilocoxd/cli")
UNTYPED = re.compile(r"\b(dict|Mapping|MutableMapping)\[[^\[\]]*, Any\]")


def is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__init__"


def public_annotations(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(what, annotation) of functions, methods, fields and module variables without an underscore, nested ones too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(child.name):
            given = (*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs)
            yield from ((f"{child.name}({a.arg})", a.annotation) for a in given if a.annotation is not None)
            if child.returns is not None:
                yield child.name, child.returns
        elif isinstance(child, ast.ClassDef) and is_public(child.name):
            yield from public_annotations(child)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name) and is_public(child.target.id):
            yield child.target.id, child.annotation
        elif isinstance(child, ast.Assign) and all(isinstance(t, ast.Name) and is_public(t.id) for t in child.targets):
            yield ast.unparse(child.targets[0]), child.value  # an alias of such a type


def untyped(tree: ast.AST) -> list[tuple[str, ast.expr]]:
    return [(what, kind) for what, kind in public_annotations(tree) if UNTYPED.search(ast.unparse(kind))]


def test_no_public_signature_hides_its_shape_in_a_mapping_to_any() -> None:
    report(
        [
            f"{where(path, kind)}: {what}: {ast.unparse(kind)}; give the shape a frozen dataclass (dilocoxd/answers)"
            for path in python_files(*TYPED_FLOORS)
            for what, kind in untyped(parsed(path))
        ]
    )


def test_the_check_itself_finds_what_it_is_for() -> None:
    bad = ("def f() -> list[dict[str, Any]]: ...", "class A:\n  def f(self, a: dict[str, Any] | None): ...",
           "class A:\n  b: Callable[[], Mapping[str, Any]]", "Tables = dict[str, Any]",
           "async def f(a: dict[str, Any]): ...")  # fmt: skip
    assert all(untyped(ast.parse(text)) for text in bad)
    good = ("def _f() -> dict[str, Any]: ...", "def f() -> dict[str, object]: ...", "a = thing(b)")
    assert not any(untyped(ast.parse(text)) for text in good)
    assert (ROOT / TYPED_FLOORS[0]).is_dir()


def class_names() -> dict[str, list[str]]:
    """Public class to the places where one of this name is defined, for all of dilocoxd."""
    found: dict[str, list[str]] = {}
    for path in python_files("dilocoxd"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and is_public(node.name):
                found.setdefault(node.name, []).append(where(path, node))
    return found


def test_a_public_class_name_means_one_thing() -> None:
    report(
        [
            f"{', '.join(places)}: {name} means {len(places)} things; name each after what it is"
            for name, places in class_names().items()
            if len(places) > 1
        ]
    )
