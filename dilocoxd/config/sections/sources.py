"""Section of run.toml that names a token store."""

from typing import Annotated

from pydantic import Field

from dilocoxd.config.fields import Section


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
