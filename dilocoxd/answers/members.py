"""GET /v1/members: who belongs to the run, as far as this site knows."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dilocoxd.answers.fields import NAME_TOLD, Count, told

InviteState = Literal["open", "expired", "used up", "closed", "void"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One site that an invite admitted."""

    peer_id: str
    name: Annotated[str, told(NAME_TOLD)]
    state: Annotated[
        Literal["member", "evicted"], told("evicted: its membership was revoked; only a new invite lets it in again.")
    ]
    serial: Annotated[str, told("Number of the invite that it came by, in hex; sites of one link have the same.")]
    role: Annotated[str, told("contribute or observe; empty: only its eviction is known.")]
    uses: Annotated[Count | None, told("How many sites that invite may admit; null: only its eviction is known.")]
    invite_expires_unix: Annotated[
        int | None, told("When that invite stops to admit others, unix seconds; null: unknown.")
    ]
    invite_state: Annotated[
        InviteState | None,
        told(
            "What that invite is to others. used up: it has let in as many as it may. closed: a site that came by it"
            " was evicted. void: its authorities were replaced. null: only an eviction is known."
        ),
    ] = None
    eviction_votes: Annotated[
        Count | None, told("Votes of members to evict it that count; null: nobody voted, or an authority decides.")
    ] = None
    eviction_votes_needed: Annotated[
        Count | None, told("So many evict it: two thirds of those who contributed lately; null: nobody voted.")
    ] = None
    left_out_until: Annotated[
        Count | None, told("It voted twice (R27): last round that leaves its work out. null: it did not.")
    ] = None
