"""GET /v1/authorities: who decides who may join the run, who did before, and whom members vote for."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dilocoxd.answers.fields import Count, told


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityList:
    """One list of authorities."""

    number: Count
    change: Annotated[str, told("Hash of the change that makes it, in hex; empty: the manifest's list.")]
    state: Annotated[
        Literal["in force", "earlier", "lost", "voted on"],
        told("lost: another change with its number is in force. voted on: too few members have voted for it."),
    ]
    decided_by: Annotated[Literal["manifest", "authorities", "members", ""], told("Empty: nobody has yet.")]
    keys: Annotated[tuple[str, ...], told("Public keys in hex.")]
    threshold: Annotated[Count, told("So many of them decide.")]
    invites_void_from: Annotated[
        Count | None, told("Invites of this list admit nobody new on a chain of so many entries; null: they are good.")
    ]
    votes: Annotated[Count | None, told("Votes of members for it that count; null: none.")] = None
    votes_needed: Annotated[Count | None, told("So many decide; null: nobody voted.")] = None
    terms: Annotated[str, told("Encoded AuthorityTerms (protocol M8) in hex; empty: the manifest's list.")] = ""
