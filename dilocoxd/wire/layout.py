"""Decides where each parameter lives in the canonical flat fp32 vector, and how that vector is cut.

Every site computes the same layout from the manifest alone, whatever its own pipeline split is, so that a
segment means the same elements everywhere. Source: docs/internals.md, canonical segments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dilocoxd.errors import ConfigError

CUT_MULTIPLE = 4096
"""Cuts inside a group are multiples of this many elements from its start; quantization blocks divide it."""


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One parameter of the model, by its global (pipeline-independent) name."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements ``[start, stop)`` of the flat vector: the unit of exchange, of hashing and of ownership."""

    index: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Span:
    """A parameter, or the part of it that a segment holds, as ``[start, stop)`` of the flat vector."""

    name: str
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """Parameters in canonical order, and segments that cover their concatenation without gap or overlap."""

    params: tuple[ParamSpec, ...]
    segments: tuple[Segment, ...]

    @cached_property
    def numel(self) -> int:
        return sum(param.numel for param in self.params)

    @cached_property
    def _spans(self) -> dict[str, Span]:
        ends = itertools.accumulate(param.numel for param in self.params)
        return {
            param.name: Span(param.name, end - param.numel, end) for param, end in zip(self.params, ends, strict=True)
        }

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {param.name: param.shape for param in self.params}

    def span(self, name: str) -> Span:
        """Where parameter ``name`` lies in the flat vector; KeyError if the model has no such parameter."""
        return self._spans[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def spans(self, names: Iterable[str]) -> list[Span]:
        """Spans of a stage's parameters in canonical order (the order of the flat vector).

        Raises ConfigError if a name is unknown or given twice: a stage that disagrees with the manifest must
        not train.
        """
        wanted = list(names)
        unknown = [name for name in wanted if name not in self._spans]
        if unknown:
            raise ConfigError(f"parameter {unknown[0]!r} is not in the manifest's layout; use the manifest's model")
        if len(set(wanted)) != len(wanted):
            raise ConfigError("a parameter is named twice in one stage; give each name once")
        return sorted((self._spans[name] for name in wanted), key=lambda span: span.start)

    def slices(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """Maximal contiguous ``(start, stop)`` ranges that a stage's parameters cover, ascending."""
        merged: list[tuple[int, int]] = []
        for span in self.spans(names):
            if merged and merged[-1][1] == span.start:
                merged[-1] = (merged[-1][0], span.stop)
            else:
                merged.append((span.start, span.stop))
        return merged

    def pieces(self, segment: Segment) -> list[Span]:
        """The parts of parameters inside ``segment``, in order; their lengths add up to its ``numel``."""
        return [
            Span(span.name, max(span.start, segment.start), min(span.stop, segment.stop))
            for span in self._spans.values()
            if span.start < segment.stop and span.stop > segment.start
        ]


def make_layout(params: Sequence[ParamSpec], segment_elements_max: int) -> Layout:
    """Layout of ``params`` in the given order, in segments of at most ``segment_elements_max`` elements.

    A segment never crosses the border of a transformer block; a module outside the blocks (embedding, final
    norm, head) is a group of its own. Large groups are cut into parts of nearly equal size. Raises
    ConfigError for a list that is empty, has a name twice or an empty parameter, and for a limit that is not
    a positive multiple of 4096.
    """
    if segment_elements_max < CUT_MULTIPLE or segment_elements_max % CUT_MULTIPLE:
        raise ConfigError(f"segment_elements_max is {segment_elements_max}; use a positive multiple of {CUT_MULTIPLE}")
    if not params:
        raise ConfigError("the model has no parameters; check the model section of the manifest")
    seen: set[str] = set()
    for param in params:
        if param.name in seen:
            raise ConfigError(f"parameter {param.name!r} appears twice; give each a name of its own")
        if any(extent < 1 for extent in param.shape):
            raise ConfigError(f"parameter {param.name!r} has shape {param.shape}; every extent must be at least 1")
        seen.add(param.name)
    segments: list[Segment] = []
    start = 0
    for _, group in itertools.groupby(params, key=lambda param: group_key(param.name)):
        numel = sum(param.numel for param in group)
        for length in _part_lengths(numel, segment_elements_max):
            segments.append(Segment(len(segments), start, start + length))
            start += length
    return Layout(tuple(params), tuple(segments))


def group_key(name: str) -> str:
    """The transformer block a parameter belongs to (``model.layers.3``), else its module (``model.norm``)."""
    parts = name.split(".")
    for position, part in enumerate(parts[:-1]):
        if part.isdecimal():
            return ".".join(parts[: position + 1])
    return ".".join(parts[:-1]) or name


def _part_lengths(numel: int, limit: int) -> list[int]:
    num_parts = -(-numel // limit)
    even = -(-numel // num_parts)
    length = -(-even // CUT_MULTIPLE) * CUT_MULTIPLE
    full, rest = divmod(numel, length)
    return [length] * full + ([rest] if rest else [])
