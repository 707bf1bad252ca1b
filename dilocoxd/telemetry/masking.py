"""Decides what of a configuration is a secret, and hides it."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

SECRET_WORDS: Final = ("token", "secret", "password", "passphrase", "api_key")
MASK: Final = "***"


def masked_table(table: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The same table with secrets replaced, at any depth."""
    return {name: masked(value, name) for name, value in table.items()}


def masked(value: JsonValue, name: str = "") -> JsonValue:
    """The same with secrets replaced: fields that are named like one, and passwords inside addresses.

    >>> masked({"token": "abc", "token_file": "t", "url": "https://me:pw@host/x"})
    {'token': '***', 'token_file': 't', 'url': 'https://***@host/x'}
    """
    if isinstance(value, dict):
        return {key: masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if name.endswith(SECRET_WORDS) and value:
        return MASK
    scheme, mark, rest = value.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{MASK}@{host.rpartition('@')[2]}{slash}{path}" if mark and "@" in host else value
