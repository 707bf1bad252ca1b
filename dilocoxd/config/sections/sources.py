"""Section of run.toml that names a token store."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from dilocoxd.config.fields import Section
from dilocoxd.errors import ConfigError

PATTERN: Final = 1024
"""Picks after which the sources' shares are exact to 1 / PATTERN (trainer/data/epochs.py)."""


class SourceSection(Section):
    """One token store of a run (docs/data.md)."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
    """What sites call it when they say where it lies (`--data NAME=PATH`)."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of its index.json, which names all of its content."""
    num_tokens: Annotated[int, Field(ge=1, le=1 << 48)]
    """Of its training part."""
    weight: Annotated[float, Field(gt=0, le=1e15)] = 1.0
    """How much of what is read comes from it, against the other sources."""
    private: bool = False
    """Only sites that have it read it, each in an order of its own; nothing leases it. A site needs one, not all."""

    @model_serializer(mode="wrap")
    def _without_private(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A run of before has no such field, and its bytes must stay the same.
        tables: dict[str, Any] = dump(self)
        if not tables["private"]:
            del tables["private"]
        return tables


def pick_counts(weights: Sequence[float]) -> list[int]:
    """How many of PATTERN samples in a row are read from each source: its share, by largest remainder."""
    total = sum(weights)
    shares = [weight / total * PATTERN for weight in weights]
    counts = [math.floor(share) for share in shares]
    rest = PATTERN - sum(counts)
    for number in sorted(range(len(counts)), key=lambda k: counts[k] - shares[k])[:rest]:
        counts[number] += 1
    return counts


def weight_min(weights: Sequence[float]) -> float:
    """From so much on a source among these is read, whichever others are raised to it as well."""
    return float(math.ceil(sum(weights) / max(1, PATTERN - len(weights)) * 1e6)) / 1e6


def require_read(sources: Sequence[SourceSection]) -> None:
    """Refuse weights by which a source would never be read. Raises ConfigError."""
    weights = [source.weight for source in sources]
    for source, count in zip(sources, pick_counts(weights) if weights else (), strict=True):
        if not count:
            raise ConfigError(
                f"data.sources: {source.name} has weight {source.weight:g} beside others of {sum(weights):g} in all, so"
                f" none of {PATTERN} samples in a row would be read from it, and never one: give it at least"
                f" {weight_min(weights):.10g}, or remove it"
            )


def store_remedy(*, is_private: bool) -> str:
    """End of a sentence: what to do where a store is not the one that the run names."""
    if is_private:
        return "give the store that run.toml names, or correct its sha256 before the start"
    return "copy that of another site"


def common_end(ends: Mapping[str, int | None]) -> int:
    """The token that ends documents in all token stores, given by name. Raises ConfigError (data.document_mask)."""
    found = set(ends.values())
    end = found.pop()
    if end is None or found:
        each = ", ".join(f"{name}: {'none' if one is None else one}" for name, one in ends.items())
        raise ConfigError(
            f"data.document_mask = true needs token stores whose documents end with one token, but these have {each};"
            " pack them with one tokenizer and --eos, or remove data.document_mask"
        )
    return end
