"""Decides how an answer becomes JSON: in small steps, and null in place of NaN and infinities, which JSON has not."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Final, TypeGuard

from aiohttp import web
from pydantic_core import to_json

ROWS_PER_STEP: Final = 250
"""Rows encoded before the loop may do something else: about 2 ms of the longest rows."""


def encoded(value: object) -> bytes:
    """JSON of a small value: an answer, or anything made of plain values."""
    return to_json(value, inf_nan_mode="null")


def json_answer(value: object) -> web.Response:
    """A small value as the answer to a request."""
    return web.Response(body=encoded(value), content_type="application/json")


async def encoded_in_steps(value: object) -> bytes:
    """JSON of a value whose lists, at the top or one level below, may be long."""
    if _is_list(value):
        return await _list(value)
    if is_dataclass(value) and any(_is_long(getattr(value, field.name)) for field in fields(value)):
        parts = []
        for field in fields(value):
            item = getattr(value, field.name)
            body = await _list(item) if _is_list(item) else encoded(item)
            parts.append(encoded(field.name) + b":" + body)
        return b"{" + b",".join(parts) + b"}"
    return encoded(value)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _is_long(value: object) -> bool:
    return _is_list(value) and len(value) > ROWS_PER_STEP


async def _list(rows: Sequence[object]) -> bytes:
    parts = []
    for start in range(0, len(rows), ROWS_PER_STEP):
        parts.append(encoded(rows[start : start + ROWS_PER_STEP])[1:-1])
        if start + ROWS_PER_STEP < len(rows):
            await asyncio.sleep(0)
    return b"[" + b",".join(part for part in parts if part) + b"]"
