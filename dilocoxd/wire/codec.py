"""One encoding for every structured message: a msgpack array ``[number, field, field, ...]`` of a frozen dataclass.

Decides whether bytes are the one canonical form of a registered message. Arrays only, fields by position, smallest
integer form, no maps, no extension types; what re-encodes to other bytes is refused (protocol/02-encoding.md).
Bounds are written on the fields: ``Annotated[bytes, Length(32, 32)]``, ``Annotated[int, Bounds(0, 2**63 - 1)]``.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgpack

from dilocoxd.errors import WireError
from dilocoxd.terminal import CONTROL

INT_MAX = 2**63 - 1
TEXT_MAX = 4096
COUNT_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive range of an integer field."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Length:
    """Inclusive range of the length of bytes (octets), text (UTF-8 octets) or a tuple (elements)."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Multiline:
    """A text field that may hold line breaks and other control characters: only between processes of one site."""


Uint = Annotated[int, Bounds(0, INT_MAX)]
Sha256 = Annotated[bytes, Length(32, 32)]
Name = Annotated[str, Length(0, 256)]
Text = Annotated[str, Length(0, TEXT_MAX)]
"""One line of text."""
Lines = Annotated[str, Length(0, TEXT_MAX), Multiline()]

_PLAIN = frozenset({int, bytes, str, bool, float, type(None)})

T = TypeVar("T")
Checker = Callable[[Any, str], Any]


def one_line(text: str) -> str:
    """`text` as a peer may send it (rule E9): every control character is a space."""
    return CONTROL.sub(" ", text)


def _fail(where: str, why: str) -> typing.NoReturn:
    raise WireError("malformed", f"{where} {why}")


def _find(meta: tuple[Any, ...], kind: type[T], default: T) -> T:
    return next((item for item in meta if isinstance(item, kind)), default)


def _sized(kind: type[str] | type[bytes], limit: Length, *, is_one_line: bool) -> Checker:
    def check(value: Any, where: str) -> Any:
        if type(value) is not kind:
            _fail(where, f"is {type(value).__name__}, not {kind.__name__}")
        size = len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else len(value)
        if not limit.low <= size <= limit.high:
            _fail(where, f"has length {size}, allowed {limit.low}..{limit.high}")
        if is_one_line and isinstance(value, str) and CONTROL.search(value):
            _fail(where, "has a control character")
        return value

    return check


def _integer(limit: Bounds) -> Checker:
    def check(value: Any, where: str) -> Any:
        if type(value) is not int:
            _fail(where, f"is {type(value).__name__}, not int")
        if not limit.low <= value <= limit.high:
            _fail(where, f"is {value}, allowed {limit.low}..{limit.high}")
        return value

    return check


def _exactly(kind: type) -> Checker:
    def check(value: Any, where: str) -> Any:
        if type(value) is not kind:
            _fail(where, f"is {type(value).__name__}, not {kind.__name__}")
        return value

    return check


def _sequence(item: Checker, limit: Length) -> Checker:
    def check(value: Any, where: str) -> Any:
        if type(value) not in (list, tuple):
            _fail(where, f"is {type(value).__name__}, not an array")
        if not limit.low <= len(value) <= limit.high:
            _fail(where, f"has {len(value)} elements, allowed {limit.low}..{limit.high}")
        return tuple(item(element, where) for element in value)

    return check


def _optional(inner: Checker) -> Checker:
    return lambda value, where: None if value is None else inner(value, where)


def _struct(kind: type) -> Checker:
    def check(value: Any, where: str) -> Any:
        if type(value) not in (list, tuple):
            _fail(where, f"is {type(value).__name__}, not an array")
        return _build(kind, value, where)

    return check


def _checker(hint: Any, meta: tuple[Any, ...] = ()) -> Checker:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *extra = get_args(hint)
        return _checker(inner, (*meta, *extra))
    if isinstance(hint, typing.NewType):
        return _checker(hint.__supertype__, meta)
    if origin in (Union, types.UnionType):
        inner = next(arm for arm in get_args(hint) if arm is not type(None))
        return _optional(_checker(inner, meta))
    if origin is tuple:
        return _sequence(_checker(get_args(hint)[0]), _find(meta, Length, Length(0, COUNT_MAX)))
    if dataclasses.is_dataclass(hint):
        return _struct(typing.cast(type, hint))
    if hint is int:
        return _integer(_find(meta, Bounds, Bounds(-INT_MAX, INT_MAX)))
    if hint in (str, bytes):
        default = TEXT_MAX if hint is str else COUNT_MAX
        is_one_line = not any(isinstance(item, Multiline) for item in meta)
        return _sized(hint, _find(meta, Length, Length(0, default)), is_one_line=is_one_line)
    return _exactly(hint)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Checker], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((f.name, _checker(hints[f.name])) for f in dataclasses.fields(kind))


def _build(kind: type, values: Any, where: str) -> Any:
    fields = _fields(kind)
    if len(values) != len(fields):
        _fail(where, f"{kind.__name__} has {len(values)} fields, needs {len(fields)}")
    return kind(*(check(v, f"{kind.__name__}.{name}") for (name, check), v in zip(fields, values, strict=True)))


@functools.cache
def _names(kind: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def _flatten(value: Any) -> Any:
    kind = value.__class__
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return [item if item.__class__ in _PLAIN else _flatten(item) for item in value]
    names = _names(kind)
    if names is not None:
        values = [getattr(value, name) for name in names]
        return [item if item.__class__ in _PLAIN else _flatten(item) for item in values]
    if isinstance(value, tuple):
        return [_flatten(item) for item in value]
    return value


def encode_struct(value: Any) -> bytes:
    """Canonical bytes of one dataclass without a message number (records, entries, headers)."""
    return typing.cast(bytes, msgpack.packb(_flatten(value), use_bin_type=True))


def _parse(data: bytes, size_max: int) -> list[Any]:
    if len(data) > size_max:
        raise WireError("too_large", f"{len(data)} bytes, at most {size_max}")
    try:
        parsed = msgpack.unpackb(
            data, raw=False, strict_map_key=True, max_array_len=COUNT_MAX, max_map_len=0, max_ext_len=0,
            max_str_len=size_max, max_bin_len=size_max,
        )  # fmt: skip
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError, MemoryError) as error:
        raise WireError("malformed", f"not msgpack: {type(error).__name__}: {str(error)[:100]}") from error
    if not isinstance(parsed, list):
        raise WireError("malformed", "not an array")
    return parsed


def decode_struct(kind: type[T], data: bytes, *, size_max: int) -> T:
    """The dataclass `kind` whose only canonical form is `data`; WireError(`malformed` | `too_large`) otherwise."""
    value = _build(kind, _parse(data, size_max), kind.__name__)
    if encode_struct(value) != data:
        raise WireError("malformed", f"{kind.__name__} is not in canonical form")
    return typing.cast(T, value)


class Registry:
    """Message numbers of one protocol. Even numbers are mandatory, odd ones may be ignored."""

    def __init__(self, numbers: dict[int, type], *, size_max: int) -> None:
        self.by_number = numbers
        self.by_type = {kind: number for number, kind in numbers.items()}
        self.size_max = size_max

    def encode(self, message: Any) -> bytes:
        """Bytes of a registered message. Raises KeyError for a type that has no number (our bug)."""
        return typing.cast(bytes, msgpack.packb([self.by_type[type(message)], *_flatten(message)], use_bin_type=True))

    def decode(self, data: bytes) -> Any | None:
        """The message, or None for an unknown optional (odd) number.

        Raises WireError: `malformed`, `too_large`, or `unknown_message` for an unknown mandatory number.
        """
        parsed = _parse(data, self.size_max)
        if not parsed or type(parsed[0]) is not int:
            raise WireError("malformed", "no message number")
        kind = self.by_number.get(parsed[0])
        if kind is None:
            if parsed[0] % 2:
                return None
            raise WireError("unknown_message", f"number {parsed[0]}")
        message = _build(kind, parsed[1:], kind.__name__)
        if self.encode(message) != data:
            raise WireError("malformed", f"{kind.__name__} is not in canonical form")
        return message
