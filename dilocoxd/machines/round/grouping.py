"""Decides who coordinates an attempt, who exchanges in it, and who reduces which segment. Pure functions with reasons.

Source: protocol/06-rounds.md (coordinator, grouping, owners).
"""

import functools
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import PayloadShape, RoundLimits
from dilocoxd.machines.round.timers import ARRIVING
from dilocoxd.wire.entry import Contribution, Evidence
from dilocoxd.wire.messages import Propose

_ORDER_DOMAIN = b"dilocoxd/2/coordinator\0"


class Decision(NamedTuple):
    """A group, or the reason why there is none yet and when to look again."""

    group: tuple[Contribution, ...] | None
    reason: str
    until: Monotonic | None = None


class Gathered(NamedTuple):
    """What a peer knows when it decides about a group."""

    contributions: Mapping[PeerId, Contribution]
    """Of live peers (and ourselves) that are ready in this attempt, in its order (R4.2): no id comes early in all."""
    awaited: Mapping[PeerId, Monotonic | None]
    """Live training peers that are not ready, with the time they are expected (None = unknown)."""
    unready: Mapping[PeerId, Monotonic]
    """Live peers at our head that have not joined this attempt: another group of theirs may still be at work. Each with
    the end of its time to join."""
    absent: frozenset[PeerId]
    """Live peers that, as far as we know, have not reached our height; they may be about to."""
    first_ready_at: Monotonic
    attempt_started_at: Monotonic
    grace_s: float
    conflicts: Set[tuple[PeerId, PeerId]]
    """(who complains, about whom): these two must not be in one group."""
    recent_contributors: Set[PeerId]
    at_fault: Set[PeerId] = frozenset()
    """Who of them is in no group with us by what we have seen ourselves."""
    on_probation: Sequence[PeerId] = ()
    """Of those in `contributions`; whom a group takes first comes first (M11)."""


def coordinator_order(
    run_id: RunId, round_index: RoundIndex, attempt: Attempt, peers: Iterable[PeerId]
) -> list[PeerId]:
    """Peers in the order in which they are asked to coordinate this attempt; the same list at everybody."""
    return list(_order(run_id, round_index, attempt, tuple(peers)))


@functools.lru_cache(1 << 10)
def _order(run_id: RunId, round_index: RoundIndex, attempt: Attempt, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    """Asked of the same peers at every event of an attempt."""
    prefix = f"{run_id}\0{round_index}\0{attempt}\0"
    return tuple(sorted(peers, key=functools.partial(_place, prefix)))


@functools.lru_cache(1 << 14)
def _place(prefix: str, peer: PeerId) -> bytes:
    return hashlib.sha256(_ORDER_DOMAIN + prefix.encode() + peer.encode()).digest()


def without_conflicts(
    peers: Iterable[PeerId], conflicts: Set[tuple[PeerId, PeerId]], on_probation: Set[PeerId] = frozenset()
) -> frozenset[PeerId]:
    """The largest-first remainder in which nobody complains about anybody.

    Whoever is in most conflicts goes first: one that stalls everybody, or complains about everybody, goes alone. In a
    conflict of two the one complained about goes. Who is on probation goes before all of this, if the other one of a
    conflict is not: fresh ids cost nothing, so their number must not decide who is left out.
    """
    if not conflicts:
        return frozenset(peers)  # as a rule: this is asked at every event
    left = set(peers)
    for pair in conflicts:
        fresh = on_probation & set(pair)
        if len(fresh) == 1 and left.issuperset(pair):
            left -= fresh
    while True:
        edges = [(a, b) for a, b in conflicts if a in left and b in left]
        if not edges:
            return frozenset(left)
        counts: dict[PeerId, tuple[int, int]] = {}
        for complains, about in edges:
            num, accused = counts.get(complains, (0, 0))
            counts[complains] = (num + 1, accused)
            num, accused = counts.get(about, (0, 0))
            counts[about] = (num + 1, accused + 1)
        left.discard(max(counts, key=lambda peer: (counts[peer], peer)))


def grace_end(gathered: Gathered, limits: RoundLimits) -> Monotonic:
    """Until when stragglers are waited for; a new attempt waits again for `grace_min_s`, so that all can join it."""
    return Monotonic(
        max(gathered.first_ready_at + gathered.grace_s, gathered.attempt_started_at + ARRIVING.seconds(limits))
    )


def _live_peers(peers: Collection[PeerId], one: str, several: str) -> str:
    return f"1 live peer {one}" if len(peers) == 1 else f"{len(peers)} live peers {several}"


def decide_group(gathered: Gathered, limits: RoundLimits, *, now: Monotonic) -> Decision:
    """Who exchanges now, or why nobody does yet (R6, R14)."""
    if not gathered.contributions:
        return Decision(None, "a site to finish its phase")
    end = grace_end(gathered, limits)
    late = sorted(p for p, expected in gathered.awaited.items() if expected is None or expected <= end)
    if late and now < end:
        return Decision(None, f"{_live_peers(late, 'is', 'are')} not ready: {', '.join(late[:3])}", end)
    if joining := {peer: end for peer, end in gathered.unready.items() if now < end}:
        names = ", ".join(sorted(joining)[:3])
        reason = f"{_live_peers(joining, 'has', 'have')} not joined this attempt: {names}"
        return Decision(None, reason, max(joining.values()))
    soon = Monotonic(gathered.attempt_started_at + ARRIVING.seconds(limits))
    if gathered.absent and now < soon:
        return Decision(None, f"{_live_peers(gathered.absent, 'is', 'are')} about to reach this height", soon)
    usable = without_conflicts(_not_at_fault(gathered), gathered.conflicts, frozenset(gathered.on_probation))
    everybody = frozenset(gathered.contributions).difference(gathered.on_probation)
    recent = gathered.recent_contributors
    if limits.has_majority_quorum and missing_majority(usable, recent) and not missing_majority(everybody, recent):
        usable = everybody  # complaints must not make a majority impossible
    chosen = _with_probation(_seniors_first(gathered, usable, limits), gathered.on_probation, limits.contributors_max)
    if not chosen:
        return Decision(None, "a site that is not on probation: nobody else may go on alone")
    group = [gathered.contributions[peer] for peer in chosen]
    if limits.has_majority_quorum and (
        reason := missing_majority({c.peer for c in group}, gathered.recent_contributors)
    ):
        return Decision(None, reason)
    return Decision(tuple(group), "group is complete" if not late else "grace for stragglers is over")


def _not_at_fault(gathered: Gathered) -> Set[PeerId]:
    """Those who offer, without whom we have seen to do nothing, if anybody is left who may go on. Their number must not
    count: where they are most we are in most conflicts, and would go first (R12.12)."""
    left = gathered.contributions.keys() - gathered.at_fault
    return left if left.difference(gathered.on_probation) else gathered.contributions.keys()


def _seniors_first(gathered: Gathered, usable: Set[PeerId], limits: RoundLimits) -> list[PeerId]:
    """Who takes a seat first where there are too few (R6.10): recent contributors, so that ids that are always ready
    push nobody out, but for a quarter of the seats. Those go by lot, for who trains for more than the recent entries
    lasted is none. With a majority to be kept it is all of them."""
    waiting = [peer for peer in gathered.contributions if peer in usable]
    open_to_all = 0 if limits.has_majority_quorum else max(1, limits.contributors_max // 4)
    seniors = [peer for peer in waiting if peer in gathered.recent_contributors]
    kept = seniors[: limits.contributors_max - open_to_all]
    return [*kept, *(peer for peer in waiting if peer not in set(kept))]


def _with_probation(usable: Sequence[PeerId], on_probation: Sequence[PeerId], limit: int) -> list[PeerId]:
    """Whom a group takes of those without conflicts, sorted: as many on probation as the others allow (M11)."""
    fresh = frozenset(on_probation)
    counted = [peer for peer in usable if peer not in fresh][:limit]
    if not counted:
        return []
    room = min(probation_room(len(counted)), limit - len(counted))
    return sorted([*counted, *[peer for peer in on_probation if peer in usable][:room]])


def probation_room(num_counted: int) -> int:
    """How many peers on probation an entry may name beside so many others: half as many, and one at least."""
    return max(1, num_counted // 2)


def probation_problem(peers: Iterable[PeerId], chain: ChainView) -> str:
    """Why these must not be the contributors of the next entry, for who of them is on probation; empty if they may."""
    named = list(peers)
    num_counted = sum(not chain.is_on_probation(peer) for peer in named)
    if not num_counted:
        return "names nobody but peers on probation"
    if len(named) - num_counted > probation_room(num_counted):
        return f"names {len(named) - num_counted} peers on probation beside {num_counted} others"
    return ""


def unseconded(voters: Set[PeerId], chain: ChainView) -> str:
    """Why votes of these commit nothing, whatever the quorum is: all of them are on probation (M11). Empty if not."""
    return "only peers on probation voted" if all(map(chain.is_on_probation, voters)) else ""


def missing_majority(group: Set[PeerId], recent: Set[PeerId]) -> str:
    """Why `quorum = majority` forbids a commit by this group; empty if it does not."""
    present = len(recent & group)
    if not recent or 2 * present > len(recent):
        return ""
    return f"quorum = majority: {present} of {len(recent)} recent contributors take part, more than half are needed"


def members(propose: Propose) -> set[PeerId]:
    """Contributors and observers."""
    return {*propose.observers, *(c.peer for c in propose.contributions)}


def evidence_problem(peers: Iterable[PeerId], evidence: Sequence[Evidence], chain: ChainView) -> str:
    """Why the next entry must not name these contributors beside this evidence; empty if it may (R27). Signatures are
    checked elsewhere."""
    accused = [found.peer for found in evidence]
    if accused != sorted(set(accused)):
        return "evidence is not sorted by peer, one each"
    for found in evidence:
        if problem := chain.evidence_problem(found):
            return problem
    named, left_out = frozenset(peers), chain.left_out_by(evidence)
    if named & left_out and not named <= left_out:
        return f"names {', '.join(sorted(named & left_out)[:3])}, who voted twice"
    return ""


def contribution_problem(contribution: Contribution, chain: ChainView, limits: RoundLimits) -> str:
    """Why this contribution must not go into the next entry; empty if it may. Everybody applies the same rule."""
    if limits.is_complete(chain.weight):
        return f"the run is complete (R24): its chain has {chain.weight} tokens"
    if chain.holds(contribution):
        return f"phase {contribution.phase} of {contribution.peer} is in the chain or before one that is"
    if contribution.tokens > limits.tokens_max or contribution.inner_steps > limits.inner_steps_max:
        return f"{contribution.peer} claims more tokens or inner steps than the manifest allows"
    if contribution.base_round > chain.height:
        return f"{contribution.peer} has a base that does not exist yet"
    if chain.height - contribution.base_round > limits.contribution_age_max:
        return f"the base of {contribution.peer} is {chain.height - contribution.base_round} rounds old"
    return ""


def proposal_problem(propose: Propose, chain: ChainView, shape: PayloadShape, limits: RoundLimits) -> str:
    """Which rule a proposal for our height and head breaks whatever our own situation is; empty if none."""
    peers = [c.peer for c in propose.contributions]
    if Digest(propose.state_digest) != chain.state_digest:
        return "state digest is not ours"
    if peers != sorted(set(peers)) or set(peers) & set(propose.observers):
        return "members are not sorted or named twice"
    if len(peers) > limits.contributors_max:
        return f"{len(peers)} contributors, at most {limits.contributors_max}"
    if len(propose.owners) != shape.num_segments or any(owner >= len(peers) for owner in propose.owners):
        return "owners do not fit the segments or the contributors"
    if shape.is_gathered and any(propose.owners):
        return "names owners, but everybody sums for itself"
    said = (propose.lowrank_r, propose.next_lowrank_r, propose.next_inner_steps)
    if said != (chain.lowrank_r, *chain.announced):
        return "low rank, or low rank or inner steps of the next entry, are not what the chain and the schedule say"
    if propose.parent_voters != chain.tip_voters:
        return "parent_voters are not the contributors of the entry before"
    if problem := evidence_problem(peers, propose.evidence, chain) or probation_problem(peers, chain):
        return problem
    if not shape.is_gathered and any(chain.is_on_probation(peers[owner]) for owner in set(propose.owners)):
        return "has a peer on probation sum for others"
    problems = (contribution_problem(c, chain, limits) for c in propose.contributions)
    return next((problem for problem in problems if problem), "")
