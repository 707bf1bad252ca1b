"""Models that other packages bring: entry points of the group `dilocoxd.models`, found without running any of them,
and the families of transformers.

A run names one by its entry point and the sha256 of the file with its class. A site has that package installed or does
not take part: no code comes from peers, and none runs here whose hash is not the run's.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError, reason_of

GROUP: Final = "dilocoxd.models"
_BASE: Final = "StageModule"
_BLOCKS: Final = "blocks"


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """An entry point: `attribute` of `module`, whose source is the file at `path`."""

    name: str
    module: str
    attribute: str
    path: Path
    sha256: str
    """Of the file, hex."""


def installed_model(name: str) -> InstalledModel:
    """The model of that name. Raises ConfigError if no package brings it, several do, or its file is not there."""
    points = {point.value: point for point in metadata.entry_points(group=GROUP, name=name)}
    if len(points) != 1:
        what = "no installed package brings" if not points else f"{' and '.join(sorted(points))} both are"
        there = ", ".join(sorted({point.name for point in metadata.entry_points(group=GROUP)})) or "none"
        raise ConfigError(
            f"{what} the model {name!r} (entry points of {GROUP!r}: {there}); install one package that has it, the"
            " same at every site"
        )
    point = next(iter(points.values()))
    path = source_file(point.module)
    if path is None or not point.attr:
        raise ConfigError(
            f"the model {name!r} is said to be {point.value}, but there is no such file; install the package again"
        )
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({reason_of(error)}); install the package of the model again"
        ) from error
    return InstalledModel(name, point.module, point.attr, path, digest)


def required_model(name: str, sha256: str) -> InstalledModel:
    """The model of that name if its file has this hash. Raises ConfigError."""
    found = installed_model(name)
    if found.sha256 != sha256:
        raise ConfigError(
            f"{found.path} (model {name!r}) has sha256 {found.sha256[:16]}, that of the run has {sha256[:16]}; install"
            " the version of the package that the run was started with"
        )
    return found


def require_library(kind: str) -> None:
    """Raise ConfigError if models of this model.kind need transformers, and it is not installed."""
    if kind not in ("native", "python", "external"):
        require_transformers(f"the model of this run (model.kind = {kind})")


def require_transformers(what: str) -> None:
    """Raise ConfigError, saying `what` needs it, unless transformers is installed; it is found, not imported."""
    if PathFinder.find_spec("transformers") is None:
        raise ConfigError(
            f"{what} needs transformers, which is not installed; install it with: pip install 'dilocoxd[hf]'"
        )


def lacks_blocks(found: InstalledModel) -> bool:
    """Whether its file shows that the class has no `blocks()` of its own; False also where that cannot be seen.

    The file is read, never run. A class that derives from anything but StageModule itself may inherit it.
    """
    try:
        tree = ast.parse(found.path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False  # what is wrong with it is told when it is built
    kind = next((one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == found.attribute), None)
    if kind is None or kind.decorator_list or [ast.unparse(base).split(".")[-1] for base in kind.bases] != [_BASE]:
        return False
    return not any(_BLOCKS in _said(statement) for statement in (*kind.body, *tree.body))


def _said(statement: ast.stmt) -> str:
    """What could give a class an attribute: the name of what is defined, or the whole of any other statement."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return "" if is_docstring else ast.unparse(statement)


def source_file(module: str) -> Path | None:
    """The file of a module, found as an import would, but nothing is imported; None: it has none."""
    spec: ModuleSpec | None = None
    before = ""
    for part in module.split("."):
        places = None if spec is None else spec.submodule_search_locations
        if spec is not None and places is None:
            return None
        before = f"{before}.{part}" if before else part
        spec = PathFinder.find_spec(before, None if places is None else list(places))
        if spec is None:
            return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None
