"""Beginning and end of a round: what is forgotten at a new tip, what is reported about the old one. On `Core`.

Source: protocol/06-rounds.md.
"""

from dilocoxd.ids import Attempt, Monotonic
from dilocoxd.rounds.attempts import enter_attempt
from dilocoxd.rounds.commands import RoundFinished, RoundSummary, SettleContribution
from dilocoxd.rounds.coordinator import contribution_problem
from dilocoxd.rounds.core import Core, Times
from dilocoxd.rounds.events import EntryApplied
from dilocoxd.rounds.votes import AcceptBox, VoteBox

READIES_HEARD = 2
"""After a recovery everybody can say Ready so often before what was waited earlier counts."""


def arrive(core: Core) -> None:
    """A new tip: forget the round before, drop a contribution that can never be used, say where we are."""
    core.gathering.next_round()
    core.drift.review(core.chain)
    core.lock = None
    core.ballot = None
    core.owned = ()
    core.votes = VoteBox()
    core.accepts = AcceptBox()
    core.failures = []
    core.times = Times(started_at=core.now)
    offer = core.offer
    if offer is not None and (problem := contribution_problem(offer.contribution, core.chain, core.limits)):
        core.failures.append(f"our contribution is not offered any more: {problem}")
        phase = offer.contribution.phase
        core.emit(SettleContribution(phase, core.round, False, (), is_voted=phase == core.voted_phase))
        core.offer = None
    enter_attempt(core, Attempt(0))


def resume_attempt(core: Core) -> None:
    """Recovery has changed nothing: back to the attempt that we left, if we were not at work in it.

    What was waited there before counts: claims that come to nothing would else hold a round up while they come. But
    everybody gets the time to say again what we did not hear meanwhile.
    """
    if core.uninvolved_for is None:
        enter_attempt(core, Attempt(core.attempt + 1))
        return
    limits = core.limits
    waited = min(core.uninvolved_for, max(0.0, limits.progress_timeout_s - READIES_HEARD * limits.ready_repeat_s))
    enter_attempt(core, core.attempt)
    core.attempt_started_at = Monotonic(core.now - waited)


def finish_round(core: Core, applied: EntryApplied) -> None:
    """The entry is applied: report the round, stand at the next one."""
    ballot = core.ballot
    assert ballot is not None, "applied an entry that nobody committed"
    times, entry = core.times, ballot.entry
    summary = RoundSummary(
        round=core.round,
        num_attempts=core.attempt + 1,
        coordinator=core.coordinator,
        contributions=entry.contributions,
        is_contributor=any(c.peer == core.me for c in entry.contributions),
        entry_hash=ballot.entry_hash,
        started_at=times.started_at,
        gathered_at=times.gathered_at,
        exchanged_at=times.exchanged_at,
        voted_at=times.voted_at,
        persisted_at=times.persisted_at,
        applied_at=core.now,
        failures=tuple(core.failures),
    )
    core.chain = core.chain.extended(entry, applied.state_digest, applied.planned)
    core.emit(RoundFinished(summary))
    arrive(core)
