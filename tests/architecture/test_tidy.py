"""House rules that a machine can check (docs/style.md). Every message says what to do instead."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 400
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 6
FOLDER_FILES_MAX = 16
"""Without __init__.py: more cannot be seen at once, and hides which of them belong together."""
PURE_FLOORS = ("wire", "compress", "outer", "machines")
BROAD = ("Exception", "BaseException")
MARK = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
FORBIDDEN_MARKS = ("skip", "skipif", "xfail")


def python_files(*folders: str) -> list[Path]:
    """Every .py file below the named folders of the repository, sorted."""
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


PRODUCT = python_files("dilocoxd")
ALL = python_files("dilocoxd", "examples", "protocol", "tests")


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def where(path: Path, node: ast.AST | None = None) -> str:
    line = getattr(node, "lineno", 1)
    return f"{path.relative_to(ROOT)}:{line}"


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def report(found: list[str]) -> None:
    assert not found, "\n" + "\n".join(found)


def length_problems(path: Path, tree: ast.Module) -> list[str]:
    found = []
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > LINES_MAX:
        found.append(f"{where(path)}: {lines} lines, at most {LINES_MAX}; move one idea into a file of its own")
    for function in functions(tree):
        size = (function.end_lineno or function.lineno) - function.lineno + 1
        if size > FUNCTION_LINES_MAX:
            found.append(
                f"{where(path, function)}: {function.name} has {size} lines, at most {FUNCTION_LINES_MAX};"
                " keep the branches here and move the leaves into functions of their own"
            )
    return found


def parameter_problems(path: Path, tree: ast.Module) -> list[str]:
    found = []
    for function in functions(tree):
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
        count = len([n for n in names if n not in ("self", "cls")])
        is_command = any("click" in ast.unparse(d) or "option" in ast.unparse(d) for d in function.decorator_list)
        if count > PARAMETERS_MAX and not is_command:
            found.append(
                f"{where(path, function)}: {function.name} takes {count} parameters, at most {PARAMETERS_MAX};"
                " group them in a frozen dataclass"
            )
    return found


def async_problems(path: Path, tree: ast.Module) -> list[str]:
    floor = path.relative_to(ROOT / "dilocoxd").parts[0]
    if floor not in PURE_FLOORS:
        return []
    kinds = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    return [
        f"{where(path, n)}: async code in the pure floor {floor!r}; return a command and let a driver do the I/O"
        for n in ast.walk(tree)
        if isinstance(n, kinds)
    ]


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(k, ast.Name) and k.id in BROAD for k in kinds)


def broad_problems(path: Path, tree: ast.Module) -> list[str]:
    if path.name == "supervisor.py":
        return []
    return [
        f"{where(path, n)}: broad except; name the exceptions you can act on, or let it reach the supervisor"
        for n in ast.walk(tree)
        if isinstance(n, ast.ExceptHandler) and is_broad(n)
    ]


def star_problems(path: Path, tree: ast.Module) -> list[str]:
    """Python before 3.11.4 (Debian 12 has 3.11.2) wraps what an `except*` raises in a group, later ones do not."""
    return [
        f"{where(path, n)}: raise inside except*; remember the exception and raise it behind the try statement"
        for star in ast.walk(tree)
        if isinstance(star, ast.TryStar)
        for handler in star.handlers
        for n in ast.walk(handler)
        if isinstance(n, ast.Raise) and n.exc is not None
    ]


def mark_problems(path: Path) -> list[str]:
    if path == Path(__file__).resolve():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{path.relative_to(ROOT)}:{number}: {match.group(1)} without an issue; write TODO(#number) or do it now"
        for number, line in enumerate(lines, 1)
        if (match := MARK.search(line))
    ]


def skip_problems(path: Path, tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in FORBIDDEN_MARKS:
            continue
        if ast.unparse(node.value) in ("pytest", "pytest.mark", "unittest"):
            found.append(
                f"{where(path, node)}: {ast.unparse(node)}; make the test pass everywhere, or remove it with a reason"
            )
    return found


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT)))
def test_product_file_is_tidy(path: Path) -> None:
    tree = parsed(path)
    report(
        length_problems(path, tree)
        + parameter_problems(path, tree)
        + async_problems(path, tree)
        + broad_problems(path, tree)
        + star_problems(path, tree)
        + mark_problems(path)
    )
    assert ast.get_docstring(tree), f"{where(path)}: no module docstring; say what the file decides or moves"


def test_what_stands_beside_the_product_is_tidy() -> None:
    found: list[str] = []
    for path in ALL:
        if path in PRODUCT:
            continue
        tree = parsed(path)
        found += length_problems(path, tree) + mark_problems(path) + skip_problems(path, tree)
        if path.name != "__init__.py" and not ast.get_docstring(tree):
            found.append(f"{where(path)}: no module docstring; say what the file is for, or what its tests prove")
    report(found)


def crowded_folders(paths: Iterable[Path]) -> list[str]:
    """Folders with too many files of their own."""
    counts = Counter(path.parent for path in paths if path.name != "__init__.py")
    return [
        f"{folder}: {count} files, at most {FOLDER_FILES_MAX}; put what belongs together into a folder of its own"
        for folder, count in sorted(counts.items())
        if count > FOLDER_FILES_MAX
    ]


def test_no_folder_is_crowded() -> None:
    report(crowded_folders(path.relative_to(ROOT) for path in ALL))


def test_files_are_ascii() -> None:
    found = []
    for path in ALL:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.isascii():
                found.append(f"{path.relative_to(ROOT)}:{number}: not ASCII; write it out")
    report(found)


BAD_EXAMPLES = {
    "length": "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX,
    "parameters": "def f(a, b, c, d, e, f, g): ...",
    "async": "async def f(): ...",
    "broad": "try:\n    x = 1\nexcept (OSError, Exception):\n    pass",
    "star": "try:\n    x = 1\nexcept* OSError:\n    raise ValueError",
    "skip": "import pytest\npytest.skip('later')",
}


def test_the_checks_themselves_find_what_they_are_for() -> None:
    pure = ROOT / "dilocoxd" / "wire" / "__init__.py"
    assert length_problems(pure, ast.parse(BAD_EXAMPLES["length"]))
    assert parameter_problems(pure, ast.parse(BAD_EXAMPLES["parameters"]))
    assert async_problems(pure, ast.parse(BAD_EXAMPLES["async"]))
    assert broad_problems(pure, ast.parse(BAD_EXAMPLES["broad"]))
    assert star_problems(pure, ast.parse(BAD_EXAMPLES["star"]))
    assert skip_problems(pure, ast.parse(BAD_EXAMPLES["skip"]))
    room = [Path(f"tests/room/test_{number}.py") for number in range(FOLDER_FILES_MAX)]
    assert not crowded_folders([*room, Path("tests/room/__init__.py"), Path("tests/room/inner/more.py")])
    assert crowded_folders([*room, Path("tests/room/one_more.py")])
    assert MARK.search("# TODO later")
    assert not MARK.search("# TODO(#12) later")
