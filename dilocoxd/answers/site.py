"""Answers about one site's disk, configuration and commands, and the form of every refusal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from dilocoxd.answers.fields import Count, Hex, told

SAMPLE_PROMPT: Final = "The "
SAMPLE_PROMPT_MAX: Final = 200
"""Characters."""

PROFILE_UNDER_WAY: Final = ("waiting", "recording")
"""States of one that is not over."""


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
class ProfileStatus:
    """The newest profile that was asked for since the daemon started."""

    state: Annotated[
        Literal["none", "waiting", "recording", "written", "failed"],
        told("`waiting`: for the next inner step; `recording`: that, or its files are written."),
    ] = "none"
    steps: Annotated[Count, told("Inner steps that were asked for.")] = 0
    recorded_steps: Count = 0
    first_step: Annotated[Count, told("Global number of the first recorded inner step; 0: not begun.")] = 0
    folder: Annotated[str, told("Below the run directory, on the site's disk; empty: not begun.")] = ""
    files: Annotated[
        tuple[str, ...], told("One Chrome trace of each rank that is not on a node; empty until all are written.")
    ] = ()
    total_bytes: Count = 0
    text: Annotated[str, told("One sentence: how far it is, or what came of it.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The newest text that the shared model wrote since the daemon started; kept in memory."""

    state: Annotated[
        Literal["none", "running", "done", "failed"],
        told("Of the one asked for last; what else is here is of the last one that was written."),
    ] = "none"
    round: Annotated[Count, told("Its snapshot.")] = 0
    prompt: Annotated[str, told("How the text begins; empty: none was written.")] = ""
    written: Annotated[str, told("What the model adds.")] = ""
    took_s: Annotated[float, Field(ge=0), told("From the request to its last word.")] = 0.0
    text: Annotated[str, told("One sentence: how far it is, or what came of it.")] = ""


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
