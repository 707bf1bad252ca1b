"""The table of parameters that stands for a model which dilocoxd does not build: somebody's own torch module.

`dilocoxd.describe` writes it, `dilocoxd start --module` puts it into run.toml (model.kind = "external").
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Final

PARAMETERS_NAME: Final = "parameters.json"
"""File of a described module, beside its weights."""
CHARACTERS_MAX: Final = 200_000
NAME_CHARACTERS_MAX: Final = 256
NUMEL_MAX: Final = 1 << 40
"""Of all parameters together: what a run of anybody may ask of whoever only looks at it."""
DIMENSIONS_MAX: Final = 8

PLACEHOLDER_SIZES: Final = {
    "vocab_size": 64,
    "hidden_size": 8,
    "num_layers": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "intermediate_size": 8,
}
"""The fields of the model section that mean nothing here, as small as they can be."""

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each parameter, in canonical order."""


def shapes_text(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """The text for model.config. Raises ValueError for a table that no run can have."""
    table = [[name, list(shape)] for name, shape in shapes]
    _check(table)
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=True)
    if len(text) > CHARACTERS_MAX:
        raise ValueError(f"the table of parameters has {len(text)} characters, at most {CHARACTERS_MAX} are allowed")
    return text


def parse_shapes(text: str) -> Shapes:
    """The table in model.config. Raises ValueError unless it is canonical, so that equal models have one text."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"model.config is not JSON ({error}); let `dilocoxd start --module` write it") from error
    _check(table)
    shapes = tuple((name, tuple(shape)) for name, shape in table)
    if shapes_text(shapes) != text:
        raise ValueError("model.config is not in canonical form; let `dilocoxd start --module` write it")
    return shapes


def num_values(text: str) -> int:
    """Values of all parameters together. Raises ValueError like `parse_shapes`."""
    return sum(math.prod(shape) for _, shape in parse_shapes(text))


def _check(table: object) -> None:
    if not isinstance(table, list) or not table:
        raise ValueError("model.config names no parameters; describe a module that has some")
    seen: set[str] = set()
    total = 0
    for row in table:
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], list)):
            raise ValueError("model.config must be a list of [name, shape]; let `dilocoxd start --module` write it")
        name, shape = row
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            raise ValueError(f"parameter {name[:40]!r} has a name that cannot be used; give it 1 to 256 letters")
        if name in seen:
            raise ValueError(f"parameter {name!r} is named twice in model.config; name each once")
        if len(shape) > DIMENSIONS_MAX or any(type(extent) is not int or extent < 1 for extent in shape):
            raise ValueError(f"parameter {name!r} has shape {shape!r}; each extent must be a whole number from 1 on")
        total += math.prod(shape)
        seen.add(name)
    if total > NUMEL_MAX:
        raise ValueError(f"model.config names {total} values, at most {NUMEL_MAX} are allowed")
