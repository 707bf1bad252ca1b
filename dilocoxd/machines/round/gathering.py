"""A group forms: who is waited for and for how long, and what happens when nobody proposes one.

Decides with what is known at this height (`look`), and tells the phase machine how long it may train on. Source:
protocol/06-rounds.md, R4 to R6, R13.
"""

from collections.abc import Mapping, Sequence

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.peers.standing import step_times
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.phase.inner_steps import site_inner_steps
from dilocoxd.machines.round.grouping import (
    Decision,
    Gathered,
    contribution_problem,
    decide_group,
    grace_end,
    missing_majority,
)
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.locks import LockDecision
from dilocoxd.machines.round.outcomes import GiveUp, Join, Outcome, Waiting
from dilocoxd.machines.round.proposals import finish_problem, promise_only, propose, take_up
from dilocoxd.machines.round.timers import (
    ACQUAINTED,
    COORDINATOR,
    HEARD,
    JOINING,
    LEFT_OUT,
    UNANSWERED_LOCK,
    Mark,
    Timers,
    earliest,
)
from dilocoxd.wire.entry import Contribution
from dilocoxd.wire.messages import Lock


def look(height: Height, process: Timers, now: Monotonic) -> Outcome:
    """Take up a proposal, make one if that is our role, or say what is missing. `process`: since when we are here."""
    if (latest := height.latest_attempt(height.attempt.index)) > height.attempt.index:
        return Join(latest)
    if pressing := height.book.tips.pressing():
        return Waiting(f"recovery: {', '.join(sorted(pressing)[:3])} stand elsewhere")
    first, *_ = order = height.candidates()
    if height.own.orders:
        promised = promise_only(height, order, now)
        reason = "the outer worker, which finishes an order of an abandoned attempt"
        return Waiting(reason, promised.until, promised.orders)
    taken = take_up(height, order, now)
    if not isinstance(taken, Waiting):
        return taken
    locks, (gathered, look_at) = height.lock_decision(), _gathered_now(height, now)
    decision = decide_group(gathered, height.limits, now=now)
    _note_who_is_late(height, gathered, decision, now)
    hold = _hold(height, locks, gathered, process, now) or _unacquainted(height, decision, process, now)
    made = _make(height, first, locks, decision, hold, now)
    if not isinstance(made, Waiting):
        return made
    silence = _silence(height, first, locks, decision, hold, now)
    if isinstance(silence, GiveUp):
        return silence
    until = earliest(look_at, taken.until, decision.until, hold.until if hold is not None else None, silence.until)
    return Waiting(made.reason, until, (*taken.orders, *made.orders))


def _make(
    height: Height, first: PeerId, locks: LockDecision, decision: Decision, hold: Waiting | None, now: Monotonic
) -> Outcome:
    """Propose if that is our role, else wait for who has it."""
    attempt = height.attempt
    if first != height.me or attempt.is_left_out or attempt.promised_to is not None:
        return Waiting(f"a proposal of {first} ({decision.reason if locks.is_free else locks.reason})")
    if hold is not None:
        return Waiting(hold.reason)
    if not locks.is_free and locks.commit is None:
        return Waiting(locks.reason)
    if locks.is_free and decision.group is None:
        return Waiting(decision.reason)
    return propose(height, locks, decision.group or (), now)


def _gathered_now(height: Height, now: Monotonic) -> tuple[Gathered, Monotonic | None]:
    """What `decide_group` gets, and when to look again. Where nothing can be done without what those left out offer,
    who keeps them waiting has its time like everybody else: to join, and to offer something from when it is due (R5.5,
    R27.9, R29.12)."""
    gathered, attempt, limits = gathered_at(height), height.attempt, height.limits
    height.book.awaits(gathered.unready, now)
    left_out = _needed(height, gathered)
    if not left_out or not any(height.words.has_offered(peer) for peer in left_out):
        return gathered, None
    ends = gathered.unready
    joining = [peer for peer, end in ends.items() if end <= now]
    due = {peer: gathered.awaited.get(peer) for peer, view in height.present_views().items() if height.is_at_work(view)}
    offers = {
        peer: Monotonic(attempt.since + limits.grace_max_s if at is None else max(attempt.since, at) + gathered.grace_s)
        for peer, at in due.items()
        if peer not in left_out and not height.words.has_offered(peer)
    }
    offering = [peer for peer, end in offers.items() if end <= now]
    height.book.waited_in_vain(joining=joining, offering=offering)
    until = earliest(*(end for end in (*ends.values(), *offers.values()) if end > now))
    return (gathered_at(height) if joining or offering else gathered), until


def _needed(height: Height, gathered: Gathered) -> frozenset[PeerId]:
    """Those left out, or suspected (R5.5), without whom no group can form of what others offer now. Who voted twice
    counts for no majority, so nothing that it offers brings one about."""
    offering, recent, limits = gathered.contributions.keys(), gathered.recent_contributors, height.limits
    if offering and not (limits.has_majority_quorum and missing_majority(offering, recent)):
        return frozenset()
    left_out = height.left_out_here(height.evidence())
    if limits.has_majority_quorum:
        left_out |= height.suspected()
    return left_out & recent if offering else left_out


def gathered_at(height: Height) -> Gathered:
    """Input of `decide_group` for this attempt, as far as we know."""
    book, words, chain, attempt = height.book, height.words, height.chain, height.attempt
    views, evidence = height.present_views(), height.evidence()
    left_out = height.left_out_here(evidence)
    pairs = book.conflicts.pairs(chain.height)
    fresh = chain.is_on_probation
    accused = {about for complains, about in pairs if fresh(about) or not fresh(complains)} if pairs else set()
    contributions: dict[PeerId, Contribution] = {}
    awaited: dict[PeerId, Monotonic | None] = {}
    unready: dict[PeerId, Monotonic] = {}
    absent: list[PeerId] = []
    readies, suspected = words.readies(), height.suspected()
    for peer, view in views.items():
        ready = readies.get(peer)
        offered = ready.contribution if ready is not None else None
        is_forbidden = offered is not None and bool(contribution_problem(offered, chain, height.limits))
        if offered is not None and not is_forbidden and peer not in left_out and words.is_in(peer, attempt.index):
            contributions[peer] = offered
        if words.left(peer) == attempt.index or peer in suspected:
            continue  # nobody waits for it
        is_welcome = peer not in accused and peer not in left_out and not is_forbidden
        if peer not in contributions and is_welcome and (offered is not None or _is_due(height, peer, view)):
            awaited[peer] = book.pace.expected(peer)
        if (ready is not None and ready.attempt >= attempt.index) or book.records[peer].has_missed_join:
            continue
        if ready is not None or view.head == chain.head:
            since = min(attempt.since, book.awaited.get(peer, attempt.since))
            unready[peer] = Monotonic(since + JOINING.seconds(height.limits))
        elif view.height < chain.height:
            absent.append(peer)
    steady = {peer: c for peer, c in contributions.items() if not height.is_left_out(peer)}
    return Gathered(
        contributions={peer: contributions[peer] for peer in height.ordered(steady or contributions)},
        awaited=awaited,
        unready=unready,
        absent=frozenset(absent),
        first_ready_at=height.grace_since(left_out),
        attempt_started_at=attempt.since,
        grace_s=book.pace.grace(height.limits),
        conflicts=pairs,
        recent_contributors=chain.electorate(evidence),
        at_fault=book.conflicts.at_fault(height.me, contributions.keys(), chain.height) if pairs else frozenset(),
        on_probation=_longest_first(height, list(filter(fresh, contributions))) if chain.served else (),
    )


def _longest_first(height: Height, on_probation: Sequence[PeerId]) -> list[PeerId]:
    """Who contributed to most entries first; of equals another one in each round (M11)."""
    return sorted(height.ordered(on_probation), key=lambda peer: -height.chain.served.get(peer, 0))


def _is_due(height: Height, peer: PeerId, view: PeerView) -> bool:
    """Whether an offer of it, of which there is none yet, is waited for."""
    is_near = view.height in (height.round, height.round - 1)
    return view.is_training and is_near and not height.book.records[peer].is_straggler


def _note_who_is_late(height: Height, gathered: Gathered, decision: Decision, now: Monotonic) -> None:
    """A group forms without them: nobody waits for them again until they answer (R6). We may be one of them: who is
    slow waits for itself in no later round either."""
    if decision.group is None:
        return
    due = (
        {p for p, at in gathered.awaited.items() if at is None or at <= now}
        if _is_grace_over(height, gathered, now)
        else set()
    )
    offering = [p for p in due if not height.words.has_offered(p)]
    height.book.waited_in_vain(joining=gathered.unready, offering=offering)


def _is_grace_over(height: Height, gathered: Gathered, now: Monotonic) -> bool:
    return now >= grace_end(gathered, height.limits)


def _hold(height: Height, locks: LockDecision, gathered: Gathered, process: Timers, now: Monotonic) -> Waiting | None:
    """Why a locked entry must not be finished now; None if it may, or if there is none that could be."""
    if locks.commit is None or height.attempt.is_left_out:
        return None
    if problem := finish_problem(height, frozenset(locks.voters), locks.commit):
        return Waiting(problem)
    # A live peer that has not joined this attempt may still take part in another group of an earlier one.
    missing = [p for p in gathered.unready if not height.book.records[p].has_missed_join]
    if joining := [p for p in missing if now < gathered.unready[p]]:
        names, end = ", ".join(sorted(joining)[:3]), max(gathered.unready[p] for p in joining)
        return Waiting(f"{names} to join this attempt, in which a locked entry is finished", end)
    height.book.waited_in_vain(joining=missing)
    return unheard_voters(height, locks, locks.commit, process, now)


def _unacquainted(height: Height, decision: Decision, process: Timers, now: Monotonic) -> Waiting | None:
    """We have just started, and know of one that offers something: another newcomer may know another (R6.11)."""
    end = process.end(ACQUAINTED, height.limits)
    group = [one.peer for one in decision.group or ()]
    if len(group) != 1 or height.me in group or now >= end:
        return None
    return Waiting("others that may say Ready: we have just started, and know of one that offers something", end)


def unheard_voters(height: Height, locks: LockDecision, lock: Lock, process: Timers, now: Monotonic) -> Waiting | None:
    """We have just started: others that are not heard yet may have gone on without us meanwhile (R13).

    None when all voters and somebody else are here, or had their time."""
    absent = sorted(set(lock.voters) - set(locks.voters))
    end = process.end(HEARD, height.limits)
    if now >= end or not (absent or height.book.is_alone_with(height.me)):
        return None
    return Waiting(f"{', '.join(absent[:3]) or 'others'}, who may have gone on before we were restarted", end)


def _silence(
    height: Height, first: PeerId, locks: LockDecision, decision: Decision, hold: Waiting | None, now: Monotonic
) -> GiveUp | Waiting:
    """A round could go on by what we know, but nobody proposes: then the next attempt, with another coordinator."""
    timers, limits = height.attempt.timers, height.limits
    can_finish = locks.commit is not None and hold is None
    if height.attempt.is_left_out:
        end, timer = timers.end(LEFT_OUT, limits), LEFT_OUT
    elif can_finish or (locks.is_free and decision.group is not None):
        timers.start(Mark.POSSIBLE, now)
        end, timer = max(timers.end(COORDINATOR, limits), _grace_of_others(height)), COORDINATOR
    elif not locks.is_free and locks.commit is None:
        end, timer = timers.end(UNANSWERED_LOCK, limits), UNANSWERED_LOCK
    else:
        timers.stop(Mark.POSSIBLE)
        return Waiting("nothing is possible yet")
    if now < end:
        return Waiting(timer.name, end)
    if len(alone := height.attempt.left_out_by) == 1:
        height.words.left_us_out_in_vain(*alone)
    return GiveUp(f"no proposal of {first} for {timer.seconds(limits):g} s", is_told=False)


def _grace_of_others(height: Height) -> Monotonic:
    """The coordinator may wait for peers that we believe to be slow: its grace counts, not only our decision."""
    left_out = height.left_out_here(height.evidence())
    grace_over = height.grace_since(left_out) + height.book.pace.grace(height.limits)
    return Monotonic(grace_over + COORDINATOR.seconds(height.limits))


def paces(height: Height) -> dict[PeerId, float]:
    """Step times of the other sites that train, as far as they are known; empty unless sites do their own number of
    steps."""
    return step_times(height.book.views()) if height.limits.site_steps_min else {}


def others_due(height: Height, now: Monotonic, own_step_s: float = 0.0) -> Monotonic | None:
    """When the last of those that the group would wait for anyway is due; None if nobody is worth training on for.

    A site that is ahead of the others trains on until then instead of letting its contribution age. Counted from
    *planned* phases: with measured ones, two sites that wait for each other would both expect the other even later.
    """
    pace, views, known = height.book.pace, height.book.views(), paces(height)
    left_out = height.chain.left_out_by(())
    latest = now + pace.grace(height.limits)
    due = []
    for peer, view in views.items():
        is_over = not view.is_live or height.words.has_offered(peer) or peer in left_out
        if is_over or not _is_due(height, peer, view):
            continue
        expected = pace.planned(peer, _planned_steps(height, peer, known, own_step_s), view.step_seconds)
        if expected is not None and now < expected <= latest:
            due.append(expected)
    return max(due, default=None)


def _planned_steps(height: Height, peer: PeerId, known: Mapping[PeerId, float], own: float) -> int:
    others = [*(seconds for other, seconds in known.items() if other != peer), *([own] if own else [])]
    return site_inner_steps(height.chain.inner_steps, known.get(peer, 0.0), others, height.limits.site_steps_min)
