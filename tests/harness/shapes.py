"""Holds an answer of the API against its class: every documented field is there, and no other. Changes answers."""

import json
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import TypeAdapter

A = TypeVar("A")


def changed(answer: A, **fields: Any) -> A:
    """The same answer with other values: `changed(status, height=3, losses__inner=None)`."""
    for path, value in fields.items():
        name, _, rest = path.partition("__")
        inner = changed(getattr(answer, name), **{rest: value}) if rest else value
        answer = replace(answer, **{name: inner})  # type: ignore[type-var]
    return answer


def assert_shape(kind: Any, body: bytes | str) -> None:
    """`body` (JSON) is an answer of class `kind`, whole."""
    adapter = TypeAdapter(kind)
    whole = adapter.dump_python(adapter.validate_json(body), mode="json")
    assert whole == json.loads(body)
