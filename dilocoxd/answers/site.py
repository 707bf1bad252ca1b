"""Answers about one site's disk, configuration and commands, and the form of every refusal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from dilocoxd.answers.fields import Count, Hex, told


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error (RFC 9457)."""

    type: Annotated[str, told("about:blank, or what kind of problem it is; see the runbook.")]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: Annotated[str, told("One sentence: what is wrong and what to do.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The daemon is well."""

    ok: Literal[True]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDone:
    """A control request was carried out."""

    ok: Literal[True]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot on this site's disk."""

    round: Count
    total_bytes: Count
    anchor_sha256: Hex
    state_digest: Hex
    chain_head: Hex
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """The resolved configuration; secrets are masked."""

    run_id: str
    run_directory: str
    run: Annotated[Mapping[str, JsonValue], told("run.toml with all defaults.")]
    site: Annotated[Mapping[str, JsonValue], told("site.toml with all defaults.")]
    warnings: tuple[str, ...]
