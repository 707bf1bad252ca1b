"""Events that name a site whose contribution, sum or vote is not what it should be, those of the audits that find it,
and those of a shared state that something of this kind has spoiled.

Types as in the catalogue. Source: protocol/08-compression.md (C9), X13; protocol/06-rounds.md, R27; docs/adr/0031.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from dilocoxd.telemetry.catalogue import Event, Level

NAMED_MAX: Final = 4
"""Sites that the text of an alert names."""


def name_newest(texts: dict[str, str], peer: str, text: str) -> None:
    """Keep a sentence of each site for the text of an alert: the newest last; the oldest is forgotten."""
    texts.pop(peer, None)
    texts[peer] = text
    while len(texts) > NAMED_MAX:
        del texts[next(iter(texts))]


def newest_first(texts: dict[str, str]) -> str:
    """The text of that alert."""
    return "; ".join(reversed(texts.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionOutsized(Event):
    """A site's contribution to an entry had many times the median norm; a few of them were counted."""

    name: ClassVar[str] = "contribution.outsized"
    level: ClassVar[Level] = "warning"
    peer: str
    round: int
    norms: float
    num_segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionDropped(Event):
    """Nothing was counted of most of a site's contribution to an entry: it pointed against those of the others."""

    name: ClassVar[str] = "contribution.dropped"
    level: ClassVar[Level] = "warning"
    peer: str
    round: int
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionContrary(Event):
    """A site's contributions point away from those of the others, again and again."""

    name: ClassVar[str] = "contribution.contrary"
    level: ClassVar[Level] = "warning"
    peer: str
    round: int
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionMeasured(Event):
    """What a site's contribution to an entry did to the loss on held-out text, in the segments summed here."""

    name: ClassVar[str] = "contribution.measured"
    is_detail: ClassVar[bool] = True
    peer: str
    round: int
    added: float
    """Nats per token; below 0 it helped."""
    deviation: float
    """Standard error of `added`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionHarmful(Event):
    """A site's contributions make the loss on held-out text worse, again and again; those of the others do not."""

    name: ClassVar[str] = "contribution.harmful"
    level: ClassVar[Level] = "warning"
    peer: str
    round: int
    added: float
    """Nats per token, by the newest one, in the segments summed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLate(Event):
    """A site of which we wanted entries, payloads or a part of a snapshot did not give it, or not in time; others are
    asked for it. Once for each site while we catch up."""

    name: ClassVar[str] = "source.late"
    level: ClassVar[Level] = "info"
    peer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFalse(Event):
    """A segment that a site reduced was summed again here from the signed contributions, and is another one: drawn by
    this site, or shown to it by another one."""

    name: ClassVar[str] = "result.false"
    level: ClassVar[Level] = "error"
    peer: str
    """The owner; empty if this site cannot say who it was."""
    round: int
    segment: int
    reason: str
    evidence: str
    """Folder that proves it; empty if none was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteContradicted(Event):
    """A site voted for two different entries in one attempt; both votes are signed. Its work is left out for a time."""

    name: ClassVar[str] = "vote.contradicted"
    level: ClassVar[Level] = "error"
    peer: str
    """Who voted; perhaps this site itself."""
    round: int
    attempt: int
    entries: tuple[str, ...]
    """First 16 hex digits of the hashes of the two entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpoiled(Event):
    """The first inner steps from this shared state had no finite loss or gradient; the trainers wait for another."""

    name: ClassVar[str] = "state.spoiled"
    level: ClassVar[Level] = "error"
    round: int
    since_round: int | None
    """Newest state before it from which a step was finite here: the entries from there on are suspected. None: no step
    was, since the daemon started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryTakenBack(Event):
    """A majority found that this entry spoiled the model, or has a false result: it has left the chain here with all
    that followed it, and the state before it is the shared state again (R29). What this site gave since is
    forgotten."""

    name: ClassVar[str] = "entry.taken_back"
    level: ClassVar[Level] = "warning"
    round: int
    entry: str
    """First 16 hex digits of its hash."""
    sites: tuple[str, ...]
    """Whose contributions it had: one of them spoiled it, or summed wrongly. Alerts name whom this site suspects."""
    followers: tuple[str, ...]
    """Entries that left because they stood on it, oldest first, as `entry`; those that were taken back themselves have
    events of their own. Evidence may name any of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTrained(Event):
    """After one that was spoiled, the shared state of this round gives a finite loss; the trainers go on."""

    name: ClassVar[str] = "state.trained"
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinished(Event):
    """Random segments of a round were summed again."""

    name: ClassVar[str] = "audit.finished"
    is_detail: ClassVar[bool] = True
    round: int
    num_made: int
    num_false: int
    num_undecided: int
    bytes_received: int
    seconds: float
