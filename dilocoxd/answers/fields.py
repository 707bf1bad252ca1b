"""Words of the types in this package: numbers with their limits, and descriptions for the OpenAPI document.

The limits are told and tested (tests/unit/api, tests/integration/several_sites/test_api_live.py), not checked when an
answer is made: a value out of its range must be shown, not take the status page down. Times are seconds since the unix
epoch unless the name ends in `_s` (a duration).
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema
from pydantic.fields import FieldInfo

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Speed = Annotated[float, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0)]
Unix = Annotated[float, Field(ge=0)]
NAME_TOLD: Final = (
    "What to call the site: the name that it gives itself, with the end of its peer id where two sites have one name;"
    " that end alone (~abcdef) while no name is known. Unique, short, plain ASCII; untrusted."
)
Hex = Annotated[str, Field(pattern="^[0-9a-f]*$")]
Severity = Literal["info", "warning", "critical"]
DaemonState = Literal["starting", "joining", "catching_up", "preparing", "training", "leaving", "paused", "failed"]
LossPoint = Annotated[
    tuple[float, int, float | None],
    # Told without prefixItems, which tools for OpenAPI do not understand yet.
    WithJsonSchema(
        {
            "type": "array",
            "items": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "minItems": 3,
            "maxItems": 3,
        }
    ),
]
"""(unix seconds, global inner step or round, loss)."""


def told(text: str) -> Any:
    """The description of a field, for `Annotated`."""
    found: FieldInfo = Field(description=text)
    return found
