"""Decides what the body of a control request may hold. The answers are in dilocoxd/answers."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dilocoxd.answers.limits import PROFILE_STEPS, PROFILE_STEPS_MAX
from dilocoxd.answers.site import SAMPLE_PROMPT, SAMPLE_PROMPT_MAX
from dilocoxd.telemetry.catalogue import Level


def _whole(value: object) -> object:
    """5.0 is an integer in JSON as 5 is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class RequestBody(BaseModel):
    """Base: no other fields than the documented ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PauseRequest(RequestBody):
    """Why the trainers pause."""

    reason: Annotated[str, Field(min_length=1, max_length=200)] = "asked for over the API"


class ProfileRequest(RequestBody):
    """How many inner steps to record."""

    steps: Annotated[int, Field(ge=1, le=PROFILE_STEPS_MAX), BeforeValidator(_whole)] = PROFILE_STEPS


class SampleRequest(RequestBody):
    """How the text begins."""

    prompt: Annotated[str, Field(min_length=1, max_length=SAMPLE_PROMPT_MAX, pattern=r"^[^\x00]+$")] = SAMPLE_PROMPT


class LogLevelRequest(RequestBody):
    """Least severity of events on stderr or in the journal."""

    level: Level


class SiteRequest(RequestBody):
    """Which other site: its name, short id or peer id."""

    site: Annotated[str, Field(min_length=1, max_length=80)]


class PeerRequest(RequestBody):
    """Which member: its peer id, for names are not unique."""

    peer_id: Annotated[str, Field(min_length=1, max_length=128)]


class AddressRequest(RequestBody):
    """Where a peer may be found."""

    address: Annotated[str, Field(min_length=3, max_length=512)]


class AdoptRequest(RequestBody):
    """A chain head in hex (at least its first 8 digits), or a site that stands on the branch."""

    target: Annotated[str, Field(min_length=1, max_length=128)]


class EvictRequest(RequestBody):
    """An encoded Revocation (protocol M4) in hex."""

    revocation: Annotated[str, Field(min_length=2, max_length=1 << 13)]


class ChangeAuthoritiesRequest(RequestBody):
    """An encoded AuthorityChange (protocol M8) in hex."""

    change: Annotated[str, Field(min_length=2, max_length=1 << 13)]


class VoteAuthoritiesRequest(RequestBody):
    """Encoded AuthorityTerms (protocol M8) in hex, as GET /v1/authorities has them."""

    terms: Annotated[str, Field(min_length=2, max_length=1 << 12)]


class EmptyRequest(RequestBody):
    """No fields."""
