"""Chooses how large the segments of a run are, where its run.toml leaves that to the model.

About a thousand of them: enough for any number of sites to share the sums fairly, few enough for the messages of a
round and for what is kept per segment. Small models get fewer, because each one costs a turn on the line. Low rank
wants whole matrices: a factored piece of m rows sends r (m + n) numbers, so n is paid again for each piece.
"""

import math
from typing import Final, Protocol

from dilocoxd.config.sections.own_module import num_values, parse_shapes

NUM_SEGMENTS: Final = 1024
ELEMENTS_MIN: Final = 1 << 20
ELEMENTS_MAX: Final = 1 << 26
CUT_MULTIPLE: Final = 4096
"""Of wire/layout.py, which configuration does not know."""


class ModelSizes(Protocol):
    """What counts of the manifest's model."""

    @property
    def kind(self) -> str: ...

    @property
    def config(self) -> str: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...


def num_parameters(model: ModelSizes) -> int:
    """Parameters of the model, near enough for memory, disk and the size of segments."""
    if model.kind == "external":
        return num_values(model.config)
    kv = model.hidden_size * model.num_kv_heads // model.num_heads
    layer = 2 * model.hidden_size * (model.hidden_size + kv) + 3 * model.hidden_size * model.intermediate_size
    return model.num_layers * layer + 2 * model.vocab_size * model.hidden_size


def _block_matrix(model: ModelSizes) -> int:
    """Elements of the largest matrix of a block; of a described module, whose blocks are numbered, that of any matrix
    where nothing is numbered."""
    if model.kind != "external":
        return model.hidden_size * max(model.hidden_size, model.intermediate_size)
    sizes = {name: math.prod(shape) for name, shape in parse_shapes(model.config) if len(shape) > 1}
    inside = [size for name, size in sizes.items() if any(part.isdecimal() for part in name.split("."))]
    return max(inside or sizes.values(), default=0)


def segment_elements(model: ModelSizes, *, is_lowrank: bool, is_adapter: bool) -> int:
    """Largest number of elements of a segment: whole rows of the model's width, a multiple of 4096, 1M to 64M.

    `is_adapter`: what is trained is small, whatever the size of the model.
    """
    if is_adapter:
        return ELEMENTS_MIN
    wanted = -(-num_parameters(model) // NUM_SEGMENTS)
    if is_lowrank:
        wanted = max(wanted, _block_matrix(model))
    # Of a module of somebody's own there is no one width: its sizes are placeholders.
    rows = CUT_MULTIPLE if model.kind == "external" else math.lcm(CUT_MULTIPLE, model.hidden_size)
    if rows > ELEMENTS_MIN or wanted <= ELEMENTS_MIN:
        rows = CUT_MULTIPLE
    return min(max(-(-wanted // rows) * rows, ELEMENTS_MIN), ELEMENTS_MAX // rows * rows)
