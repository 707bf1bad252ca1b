"""Decides what every configuration field must tell: unit, range, effect and cost, in its description.

Source: docs/style.md rule 24; the texts are printed by `dilocoxd check-config --explain`.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """Base of every section: unknown fields and silent conversions are refused, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def knob(effect: str, *, unit: str, cost: str, **limits: Any) -> FieldInfo:
    """Field metadata with one description of the fixed shape `effect Unit: .. Range: .. Cost: ..`.

    Args:
        effect: what the value does and which way to turn it; a sentence.
        unit: of the value, or `text`, `choice`, `flag`.
        cost: what the other end of the range costs; a sentence.
        limits: gt, ge, lt, le, multiple_of, min_length, max_length, pattern (as pydantic takes them).
    """
    return Field(description=f"{effect} Unit: {unit}. Range: {_range_text(limits)}. Cost: {cost}", **limits)  # type: ignore[no-any-return]


def _range_text(limits: dict[str, Any]) -> str:
    words = {
        "gt": "> {}",
        "ge": ">= {}",
        "lt": "< {}",
        "le": "<= {}",
        "multiple_of": "multiple of {}",
        "min_length": "length >= {}",
        "max_length": "length <= {}",
        "pattern": "matches {}",
    }
    parts = [words[name].format(value) for name, value in limits.items() if name in words]
    return " and ".join(parts) if parts else "as the type says"


Sha256Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""64 lower-case hex digits, or empty: not checked."""
