"""Everything that is held about another peer, row by row: where it lies, what it enters by and what ends it.

The same table as in protocol/06-rounds.md (peer standing); a test holds the two, and the places, together.
"""

from typing import Final, NamedTuple


class StandingRow(NamedTuple):
    """One item. `place`: module below dilocoxd/machines, class and attribute."""

    book: str
    place: str
    set_by: str
    ended_by: str


STANDING: Final = (
    StandingRow(
        "views",
        "peers.record:Standing.view",
        "membership; Ready from further down (R6.8)",
        "the next word of membership that differs from its last",
    ),
    StandingRow(
        "departed",
        "peers.record:Standing.has_departed",
        "`Leaving`",
        "membership sees it back; any Ready (R17.2)",
    ),
    StandingRow(
        "readies",
        "peers.readiness:Word.ready",
        "Ready",
        "a new height; a Ready from another tip",
    ),
    StandingRow(
        "buffered",
        "round.height:Height.buffered",
        "Ready",
        "we reach that height, or pass it; it claims a later one then; `Leaving`; Ready from further down; not live",
    ),
    StandingRow(
        "claimed",
        "peers.readiness:Word.claimed",
        "Ready",
        "a new height",
    ),
    StandingRow(
        "suspicion",
        "peers.record:Standing.suspicion",
        "Ready",
        "half is forgotten at a new height",
    ),
    StandingRow(
        "abandoned",
        "peers.readiness:Word.abandoned",
        "Abandon; it goes on while it is needed; it takes part in another group",
        "a new height",
    ),
    StandingRow(
        "left",
        "peers.readiness:Word.left",
        "as `abandoned`",
        "its next Ready; a new height",
    ),
    StandingRow(
        "straggler",
        "peers.record:Standing.is_straggler",
        "grace",
        "a contribution of it",
    ),
    StandingRow(
        "missed_join",
        "peers.record:Standing.has_missed_join",
        "joining",
        "Ready, Propose, ProposeCommit, `Accept` or Vote of this or a later attempt; Ready from elsewhere",
    ),
    StandingRow(
        "awaited",
        "peers.standing:PeerBook.awaited",
        "an attempt that it has not joined",
        "as `missed_join`; not live; a new height; our own recovery",
    ),
    StandingRow(
        "missed_accept",
        "peers.record:Standing.has_missed_accept",
        "vote",
        "`Accept`",
    ),
    StandingRow(
        "conflicts",
        "peers.conflicts:Conflicts.until",
        "`Abandon` with blames; own failed attempts",
        "3 rounds later",
    ),
    StandingRow(
        "pace",
        "peers.record:Standing.phases",
        "contributions",
        "absence ends the running measurement",
    ),
    StandingRow(
        "proposals",
        "round.attempt:RunningAttempt.proposals",
        "Propose, ProposeCommit",
        "taken up or refused; the attempt ends",
    ),
    StandingRow(
        "left_out_by",
        "round.attempt:RunningAttempt.left_out_by",
        "Propose, ProposeCommit",
        "the attempt ends",
    ),
    StandingRow(
        "false_alarm",
        "peers.readiness:Word.has_false_alarm",
        "left out",
        "a new height",
    ),
    StandingRow(
        "signs",
        "exchange.exchange:Exchange.signs",
        "Vote, a segment from it, a receipt of it",
        "the attempt ends",
    ),
    StandingRow(
        "accepts",
        "round.locks:AcceptBox.accepted",
        "Accept",
        "a new height",
    ),
    StandingRow(
        "votes",
        "round.locks:VoteBox.votes",
        "Vote",
        "a new height",
    ),
    StandingRow(
        "votes_seen",
        "peers.double_votes:DoubleVotes.cast",
        "Vote; entries that recovery brings",
        "32 newer ones",
    ),
    StandingRow(
        "evidence",
        "peers.double_votes:DoubleVotes.proofs",
        "as `votes_seen`; `Accuse`; Propose",
        "a newer one once it is over",
    ),
    StandingRow(
        "taken_back",
        "peers.reverts:Reverts.votes",
        "TakeBack; our own state is spoiled, or a result found false",
        "decided; the entry is not among the last 8",
    ),
    StandingRow(
        "found_false",
        "peers.false_results:FalseResults._until",
        "our own sum differs (X14.4)",
        "64 rounds after that entry's",
    ),
    StandingRow(
        "shown",
        "round.attempt:RunningAttempt.shown",
        "ResultHashes",
        "the attempt ends",
    ),
    StandingRow(
        "claims",
        "peers.record:Tip.claim",
        "Ready, `Committed`, heartbeat",
        "says a tip of ours; we reach it; not confirmed; not live; unknown, silent for `progress_timeout_s`",
    ),
    StandingRow(
        "here",
        "peers.record:Tip.is_at_our_head",
        "Ready, `Committed`, heartbeat",
        "says a tip ahead or on another branch, or Ready from further down; not live; a new height",
    ),
    StandingRow(
        "unconfirmed",
        "peers.record:Tip.is_unconfirmed",
        "recovery ends; a claim while ignored",
        "says our tip; a claim proves true",
    ),
    StandingRow(
        "ignored",
        "peers.record:Tip.backoff_until",
        "recovery ends without confirming",
        "a claim proves true",
    ),
    StandingRow(
        "num_unavailable",
        "peers.record:Tip.num_unavailable",
        "recovery ends",
        "a claim proves true; a part came",
    ),
    StandingRow(
        "num_overdue",
        "peers.record:Tip.num_overdue",
        "recovery ends",
        "a claim proves true",
    ),
    StandingRow(
        "ignored_height",
        "peers.record:Tip.ignored_height",
        "a claim while ignored, or that begins it",
        "says our tip, or from further down; a lower claim, not overtaken; not live",
    ),
    StandingRow(
        "digests",
        "peers.record:Tip.digest",
        "Ready",
        "a new height",
    ),
)
