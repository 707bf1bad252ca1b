"""Pure decisions of a round: coordinator order, groups with reasons, owners, locks, claims of other tips."""

import dataclasses
from dataclasses import replace

from dilocoxd.daemon.observe.ticker import NOBODY_READY
from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.owners import assign_owners
from dilocoxd.machines.limits import PayloadShape, RoundLimits
from dilocoxd.machines.peers.conflicts import CONFLICT_ROUNDS, Conflicts
from dilocoxd.machines.peers.record import PeerRecords
from dilocoxd.machines.peers.tips import AHEAD, BEHIND, FORK, SAME, UNAVAILABLE_MAX, Tips, Vain, relation
from dilocoxd.machines.round.grouping import (
    Gathered,
    contribution_problem,
    coordinator_order,
    decide_group,
    missing_majority,
    proposal_problem,
    without_conflicts,
)
from dilocoxd.machines.round.locks import resolve_locks
from dilocoxd.wire.entry import Contribution, Signature
from dilocoxd.wire.messages import Lock, Propose

RUN = RunId("run-0123456789abcdef")
A, B, C, D = (PeerId(name) for name in "ABCD")
HEAD = Digest(b"h" * 32)
LIMITS = RoundLimits(grace_min_s=0.5, progress_timeout_s=20.0, tokens_max=100)


def contribution(peer: PeerId, phase: int = 0, tokens: int = 10, base: int = 0) -> Contribution:
    return Contribution(peer, PhaseId(phase), RoundIndex(base), 5, tokens, bytes(32))


def gathered(*ready: PeerId, awaited: tuple[PeerId, ...] = (), unready: tuple[PeerId, ...] = ()) -> Gathered:
    return Gathered(
        contributions={peer: contribution(peer) for peer in ready},
        awaited=dict.fromkeys(awaited),
        unready=dict.fromkeys(unready, Monotonic(10.0 + LIMITS.progress_timeout_s)),
        absent=frozenset(),
        first_ready_at=Monotonic(10.0),
        attempt_started_at=Monotonic(10.0),
        grace_s=3.0,
        conflicts=frozenset(),
        recent_contributors=frozenset(),
    )


def peers_of(reading: Gathered, now: float) -> tuple[list[PeerId] | None, str]:
    decision = decide_group(reading, LIMITS, now=Monotonic(now))
    return (None if decision.group is None else [c.peer for c in decision.group]), decision.reason


def test_who_contributed_lately_has_a_seat_before_ids_that_sort_first() -> None:
    """TRUST H3: ids made for it fill no group, but a quarter of the seats is open to those who are not known. R6.10."""
    small = replace(LIMITS, contributors_max=4)
    known, ground = [PeerId(f"q{i}") for i in range(6)], [PeerId(f"a{i}") for i in range(64)]
    reading = gathered(*ground, *known)._replace(recent_contributors=frozenset(known))

    def seats(limits: RoundLimits) -> list[PeerId]:
        group = decide_group(reading, limits, now=Monotonic(99.0)).group
        return [c.peer for c in group or ()]

    assert seats(small) == [ground[0], *known[:3]]
    assert seats(replace(small, has_majority_quorum=True)) == known[:4], "else no group would be a majority"
    assert seats(replace(LIMITS, contributors_max=70)) == sorted([*ground, *known])


def test_coordinator_order_is_the_same_for_everybody_and_changes_with_the_attempt() -> None:
    peers = [PeerId(f"peer{i}") for i in range(8)]
    first = coordinator_order(RUN, RoundIndex(3), Attempt(0), peers)
    assert first == coordinator_order(RUN, RoundIndex(3), Attempt(0), reversed(peers))
    orders = {tuple(coordinator_order(RUN, RoundIndex(3), Attempt(a), peers)) for a in range(6)}
    assert len(orders) > 3


def test_group_waits_for_stragglers_until_the_grace_is_over() -> None:
    reading = gathered(A, B, awaited=(C,))
    group, reason = peers_of(reading, 12.0)
    assert group is None and reason == "1 live peer is not ready: C"
    assert peers_of(gathered(A, awaited=(B, C)), 12.0)[1] == "2 live peers are not ready: B, C"
    assert peers_of(reading, 13.0)[0] == [A, B]


def test_group_does_not_wait_for_who_is_due_after_the_grace() -> None:
    reading = gathered(A)
    late = reading._replace(awaited={B: Monotonic(13.5)})
    assert peers_of(late, 11.0)[0] == [A]


def test_group_waits_longer_for_live_peers_that_may_be_in_another_attempt() -> None:
    reading = gathered(A, unready=(B,))
    assert peers_of(reading, 20.0) == (None, "1 live peer has not joined this attempt: B")
    assert peers_of(reading, 30.0)[0] == [A]


def test_nobody_ready_is_a_reason_and_no_group() -> None:
    assert peers_of(gathered(), 99.0) == (None, NOBODY_READY), "the terminal knows these words"


def test_who_complains_about_everybody_goes_alone() -> None:
    assert without_conflicts([A, B, C, D], {(A, B), (A, C), (A, D)}) == {B, C, D}
    assert without_conflicts([A, B, C, D], {(B, A), (C, A), (D, A)}) == {B, C, D}
    assert without_conflicts([A, B], {(A, B)}) == {A}, "of two, the one complained about goes"


def test_majority_counts_those_who_contributed_lately() -> None:
    assert missing_majority({A, B}, {A, B, C}) == ""
    assert "1 of 3" in missing_majority({A, D}, {A, B, C})
    assert "1 of 2" in missing_majority({A}, {A, B}), "half is not more than half: the other half could commit too"
    assert missing_majority({A}, set()) == "", "a young run has no recent contributors"


def test_owners_share_the_load_by_bandwidth() -> None:
    owners = assign_owners([10] * 100, [200, 100, 200])
    assert [owners.count(index) for index in range(3)] == [40, 20, 40]
    assert set(assign_owners([10] * 9, [0, 0, 0])) == {0, 1, 2}, "unknown bandwidths count the same"


def test_owners_of_the_attempt_before_keep_their_segments() -> None:
    kept = assign_owners([10] * 4, [1, 1], [1, None, 1, None])
    assert (kept[0], kept[2]) == (1, 1)
    assert kept[1] == kept[3] == 0


def test_contribution_must_be_new_bounded_and_not_too_old() -> None:
    chain = ChainView(RUN, RoundIndex(9), HEAD, HEAD, last_phases={A: PhaseId(4)})
    assert "in the chain" in contribution_problem(contribution(A, phase=4, base=9), chain, LIMITS)
    assert "more tokens" in contribution_problem(contribution(A, phase=5, tokens=101, base=9), chain, LIMITS)
    assert "rounds old" in contribution_problem(contribution(A, phase=5, base=0), chain, LIMITS)
    assert "not exist yet" in contribution_problem(contribution(A, phase=5, base=10), chain, LIMITS)
    assert contribution_problem(contribution(A, phase=5, base=9), chain, LIMITS) == ""


def test_nothing_goes_into_an_entry_on_a_complete_chain() -> None:
    limits = dataclasses.replace(LIMITS, stop_after_tokens=100)
    for weight, is_complete in ((99, False), (100, True), (101, True)):
        chain = ChainView(RUN, RoundIndex(9), HEAD, HEAD, weight=weight)
        problem = contribution_problem(contribution(A, phase=5, base=9), chain, limits)
        assert ("R24" in problem) is is_complete
    assert not LIMITS.is_complete(2**62), "without a limit there is no end"


def lock(attempt: int, *voters: PeerId, held: bool = True, entry: bytes = b"e") -> Lock:
    return Lock(Attempt(attempt), entry * 32, tuple(voters), held)


def test_one_voter_without_the_lock_frees_all() -> None:
    decision = resolve_locks({A: lock(0, A, B), B: None}, {A, B}, Attempt(1))
    assert decision.is_free and decision.commit is None


def test_all_live_voters_locked_means_finish_that_entry() -> None:
    decision = resolve_locks({A: lock(0, A, B, C), B: lock(0, A, B, C)}, {A, B}, Attempt(1))
    assert decision.commit is not None and set(decision.voters) == {A, B}


def test_live_voter_that_has_not_spoken_is_waited_for() -> None:
    decision = resolve_locks({A: lock(0, A, B)}, {A, B}, Attempt(1))
    assert not decision.is_free and decision.commit is None and "B" in decision.reason


def test_payload_that_nobody_holds_frees_only_when_a_fork_is_allowed() -> None:
    locks = {A: lock(0, A, B, held=False)}
    assert resolve_locks(locks, {A}, Attempt(1)).is_free
    assert resolve_locks(locks, {A}, Attempt(1), may_fork=False).commit is not None


def test_later_lock_wins_over_an_earlier_one_of_a_split_network() -> None:
    decision = resolve_locks({A: lock(0, A, entry=b"x"), B: lock(2, B, entry=b"y")}, {A, B}, Attempt(3))
    assert decision.commit is not None and decision.commit.entry_hash == b"y" * 32


def test_locks_of_one_attempt_wait_for_the_voters_of_both_and_then_the_smaller_hash_wins() -> None:
    """R13.7: what B has committed must not be found out after something else was finished."""
    x, y = lock(0, A, entry=b"x"), lock(0, B, C, entry=b"y")
    decision = resolve_locks({A: x, C: y}, {A, B, C}, Attempt(1))
    assert not decision.is_free and decision.commit is None and "B" in decision.reason
    assert resolve_locks({A: x, B: None, C: y}, {A, B, C}, Attempt(1)).commit == x, "the other one is void"
    assert resolve_locks({A: x, B: y, C: y}, {A, B, C}, Attempt(1)).commit == x, "both stand"
    assert resolve_locks({A: x, C: y}, {A, C}, Attempt(1)).commit == x, "who is gone is not waited for"


def test_relation_of_a_claimed_tip() -> None:
    heads = tuple(Digest(bytes([i]) * 32) for i in range(4))
    chain = ChainView(RUN, RoundIndex(4), heads[-1], HEAD, heads=heads)
    assert relation(chain, RoundIndex(4), heads[3]) == SAME
    assert relation(chain, RoundIndex(4), HEAD) == FORK
    assert relation(chain, RoundIndex(2), heads[1]) == BEHIND
    assert relation(chain, RoundIndex(2), HEAD) == FORK
    assert relation(chain, RoundIndex(5), HEAD) == AHEAD


HEADS = tuple(Digest(bytes([i]) * 32) for i in range(8))


def chain_of(height: int) -> ChainView:
    return ChainView(RUN, RoundIndex(height), HEADS[height - 1], HEAD, heads=HEADS[:height])


def test_peer_that_went_on_while_we_recovered_is_followed_and_not_taken_for_a_liar() -> None:
    records = PeerRecords()
    tips = Tips(LIMITS, records)
    tips.hear(chain_of(3), B, RoundIndex(5), HEADS[4], Monotonic(10.0))
    asked = tips.due(Monotonic(11.0))
    assert list(asked) == [B]
    tips.hear(chain_of(3), B, RoundIndex(6), HEADS[5], Monotonic(11.1))
    tips.review(chain_of(5))
    tips.finished(chain_of(5), asked, Monotonic(11.3), has_moved=True)
    assert not tips.unconfirmed, "or B would not count as present, and we would commit round 5 alone: a fork"
    assert tips.claims[B].height == 6
    assert list(tips.due(Monotonic(11.3))) == [B], "at once: the next round takes no longer than a recovery"
    tips.review(chain_of(6))
    tips.finished(chain_of(6), tips.due(Monotonic(11.3)), Monotonic(11.5), has_moved=True)
    assert not tips.claims and not tips.unconfirmed


def test_claim_that_recovery_could_not_confirm_is_ignored_for_longer_and_longer() -> None:
    records = PeerRecords()
    tips, now, chain = Tips(LIMITS, records), 10.0, chain_of(3)
    for length in (2, 4, 8):
        tips.hear(chain, B, RoundIndex(7), HEAD, Monotonic(now))
        asked = tips.due(Monotonic(now + 1.0))
        tips.hear(chain, B, RoundIndex(8), HEAD, Monotonic(now + 1.0))  # lying on does not help
        tips.finished(chain, asked, Monotonic(now + 1.0), has_moved=False)
        assert not tips.claims
        assert records[B].tip.backoff_until == now + 1.0 + length * LIMITS.recovery_retry_s
        now = records[B].tip.backoff_until
    tips.hear(chain, B, RoundIndex(3), HEADS[2], Monotonic(now))
    assert not tips.unconfirmed


def test_claim_of_a_branch_that_could_not_be_had_is_not_waited_for_for_ever() -> None:
    records = PeerRecords()
    tips, now, chain = Tips(LIMITS, records), 10.0, chain_of(3)
    for peer in (A, B):
        tips.hear(chain, peer, RoundIndex(7), HEAD, Monotonic(now))
    tips.failed([A], [B], Monotonic(now))
    assert list(tips.claims) == [B], "a stream that broke is no reason to take B for a liar"
    assert tips.unconfirmed == {A} and records[A].tip.backoff_until == now + 2 * LIMITS.recovery_retry_s
    for _ in range(UNAVAILABLE_MAX - 1):
        assert tips.claims
        tips.failed([], [B], Monotonic(now))
    assert not tips.claims and tips.unconfirmed == {A, B}
    later = records[B].tip.backoff_until
    tips.hear(chain, B, RoundIndex(5), HEADS[4], later)
    tips.finished(chain_of(5), tips.due(Monotonic(later + 10.0)), Monotonic(later + 11.0), has_moved=True)
    assert tips.unconfirmed == {A}, "or the next round would be committed without B"


def test_claim_of_which_only_a_part_came_stays_and_is_followed_at_once() -> None:
    records = PeerRecords()
    tips = Tips(LIMITS, records)
    tips.hear(chain_of(3), B, RoundIndex(7), HEAD, Monotonic(10.0))
    asked = tips.due(Monotonic(11.0))
    tips.finished(chain_of(4), asked, Monotonic(12.0), Vain((B,), in_part=B), has_moved=True)
    assert not tips.unconfirmed, "or we would go on alone beside it: a fork"
    assert list(tips.due(Monotonic(12.0))) == [B]


def test_an_overtaken_message_does_not_take_back_a_claim() -> None:
    chain = ChainView(RUN, RoundIndex(6), HEAD, Digest(bytes(32)), heads=(HEAD,))
    records = PeerRecords()
    tips = Tips(LIMITS, records)

    def says(height: int, at: float, *, is_late: bool = False) -> list[PeerId]:
        tips.hear(chain, A, RoundIndex(height), HEAD, Monotonic(at), "new" if is_late else "none")
        return list(tips.claims)

    assert says(7, 10.0) == [A]
    assert says(6, 10.0 + LIMITS.behind_grace_s / 2) == [A], "sent before the claim, or its peer would say more"
    assert says(6, 30.0, is_late=True) == [A], "a heartbeat may be older than the claim"
    assert says(6, 30.0) == [], "the peer itself says that it stands here"


def test_a_heartbeat_from_before_a_change_of_branch_does_not_take_back_the_claim() -> None:
    """Seed 923090: it stood here, changed to another branch at this height and said so; then its last heartbeat came,
    and others committed beside it."""
    chain = ChainView(RUN, RoundIndex(6), HEAD, Digest(bytes(32)), heads=(HEAD,))
    tips = Tips(LIMITS, PeerRecords())
    tips.hear(chain, A, RoundIndex(6), Digest(b"\1" * 32), Monotonic(10.0))
    tips.hear(chain, A, RoundIndex(6), HEAD, Monotonic(10.3), "new")
    assert list(tips.claims) == [A]
    tips.hear(chain, A, RoundIndex(6), HEAD, Monotonic(10.4))
    assert list(tips.claims) == [], "its own word does"


def test_proposal_must_announce_what_the_schedule_of_the_state_wants() -> None:
    chain = ChainView(RUN, RoundIndex(0), HEAD, Digest(bytes(32)), lowrank_r=16, inner_steps=50, planned=(12, 40))
    shape = PayloadShape(3, (10, 10))

    def problem(lowrank_r: int, next_lowrank_r: int, next_inner_steps: int) -> str:
        propose = Propose(
            round=RoundIndex(0), attempt=Attempt(0), parent=HEAD, state_digest=bytes(32),
            contributions=(contribution(A),), offers=(Signature(b"k", b"s"),), observers=(), owners=(0, 0),
            lowrank_r=lowrank_r, next_lowrank_r=next_lowrank_r, next_inner_steps=next_inner_steps,
            parent_voters=(), evidence=(),
        )  # fmt: skip
        return proposal_problem(propose, chain, shape, LIMITS)

    assert problem(16, 12, 40) == ""
    for wrong in ((12, 12, 40), (16, 16, 40), (16, 12, 50)):
        assert "what the" in problem(*wrong)
    assert ChainView(RUN, RoundIndex(0), HEAD, HEAD, lowrank_r=4, inner_steps=9).announced == (4, 9)


def test_who_said_meanwhile_that_it_is_here_is_here_after_a_recovery_that_moved_nothing() -> None:
    chain = ChainView(RUN, RoundIndex(5), HEAD, HEAD, heads=(HEAD,))
    tips = Tips(LIMITS, PeerRecords())
    tips.hear(chain, B, RoundIndex(6), Digest(b"x" * 32), Monotonic(0.0))
    asked = dict(tips.claims)
    tips.hear(chain, C, RoundIndex(5), HEAD, Monotonic(1.0))
    tips.finished(chain, asked, Monotonic(2.0), has_moved=False)
    assert C in tips.here()


def test_r12_whom_we_blame_ourselves_goes_first_however_many_they_are() -> None:
    """Lab book of the simulator, 52: members that do nothing, and are most."""
    conflicts = frozenset({(A, B), (A, C)})
    reading = gathered(A, B, C, D)._replace(conflicts=conflicts)
    assert peers_of(reading, 20.0)[0] == [B, C, D], "who complains about most goes, as anybody else sees it"
    assert peers_of(reading._replace(at_fault=frozenset({B, C})), 20.0)[0] == [A, D]
    alone = gathered(A, B)._replace(at_fault=frozenset({B}), on_probation=[A])
    assert peers_of(alone, 20.0)[0] == [A, B], "nobody on probation goes on alone"


def test_r12_whoever_blames_all_others_blames_them_twice_before_it_goes_on_alone() -> None:
    book, now = Conflicts(), RoundIndex(5)
    book.blame(A, [B, C], now, Attempt(1))
    book.blame(D, [A], now, Attempt(1))
    assert book.at_fault(A, {A, B, C, D}, now) == {B, C}
    assert not book.at_fault(A, {A, B, C}, now), "the fault may be ours"
    book.blame(A, [B, C], now, Attempt(2))
    assert book.at_fault(A, {A, B, C}, now) == {B, C}
    assert not book.at_fault(A, {A, B, C, D}, RoundIndex(now + CONFLICT_ROUNDS + 1))
