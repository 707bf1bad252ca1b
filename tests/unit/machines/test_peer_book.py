"""The book of peers: who is waited for and believed, what ends that, and what a new height leaves of it."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.peers.conflicts import Conflicts
from dilocoxd.machines.peers.readiness import Readiness, merged
from dilocoxd.machines.peers.record import PEERS_MAX, PeerRecords
from dilocoxd.machines.peers.standing import SUSPICION_KEPT, SUSPICION_MAX, PeerBook
from dilocoxd.machines.peers.tips import BACKOFF_MAX, COMPARED_PROGRESSES, OVERDUE_MAX, OVERDUE_REST
from dilocoxd.machines.peers.view import PeerView
from tests.unit.machines.round_world import BITS, LIMITS, ME, START, B, C, chain_at, ready, view

CHAIN = chain_at()


def book_of(*others: PeerId) -> PeerBook:
    book = PeerBook(ME, LIMITS)
    book.see([view(peer) for peer in others], CHAIN, START)
    return book


def test_goodbye_holds_until_its_peer_says_anything_or_membership_saw_it_come_back() -> None:
    book = book_of(B, C)
    for peer in (B, C):
        book.goodbye(peer, has_departed=True)
    book.see([view(B), view(C)], CHAIN, START)
    assert book.live() == {ME}, "membership does not know of the goodbye yet"
    book.goodbye(B, has_departed=False)
    assert book.live() == {ME, B}
    book.see([view(B), view(C, is_live=False)], CHAIN, START)
    book.see([view(B), view(C)], CHAIN, START)
    assert book.live() == {ME, B, C}


@pytest.mark.parametrize(
    ("ours", "others", "dead", "is_wrong"),
    [
        (3, {}, {}, False),
        (3, {"x": 1, "y": 1, "z": 1}, {}, False),
        (3, {"x": 2, "y": 2}, {}, False),
        (2, {"x": 2}, {}, True),
        (2, {"x": 3, "y": 1}, {}, True),
        (2, {"x": 1}, {"x": 2}, False),
        (1, {}, {"x": 4}, False),
    ],
)
def test_r23_our_bits_are_wrong_unless_more_live_peers_hold_them_than_any_other_ones(
    ours: int, others: dict[str, int], dead: dict[str, int], is_wrong: bool
) -> None:
    """`ours`: peers that hold our bits, ourselves included; `others`, `dead`: live and dead peers that hold these."""
    held = {PeerId(f"same{index}"): BITS for index in range(ours - 1)}
    for prefix, counts in (("live", others), ("dead", dead)):
        for bits, count in counts.items():
            held |= {PeerId(f"{prefix}{bits}{index}"): Digest(bits.encode() * 32) for index in range(count)}
    book = book_of(*held)
    for peer, digest in held.items():
        book.tips.holds_bits(peer, digest)
    book.see([view(peer, is_live=not peer.startswith("dead")) for peer in held], CHAIN, START)
    assert book.tips.has_wrong_bits(CHAIN) is is_wrong


def test_each_wait_in_vain_ends_with_what_was_waited_for_and_with_nothing_else() -> None:
    book = book_of(B)
    for ended_by, flag in (
        (book.joined, "has_missed_join"),
        (book.accepted, "has_missed_accept"),
        (book.contributed, "is_straggler"),
    ):
        book.waited_in_vain(joining=[B], accepting=[B], offering=[B])
        ended_by(B)
        still = [
            name for name in ("has_missed_join", "has_missed_accept", "is_straggler") if getattr(book.records[B], name)
        ]
        assert len(still) == 2 and flag not in still


def test_who_is_alone_in_later_attempts_too_often_is_not_followed_and_half_is_forgotten_at_a_height() -> None:
    book = book_of(B)
    for _ in range(SUSPICION_MAX):
        book.raised(B)
    assert not book.is_suspected(B)
    for _ in range(2 * SUSPICION_KEPT):
        book.raised(B)
    assert book.is_suspected(B) and book.records[B].suspicion == SUSPICION_KEPT
    book.reach(CHAIN)
    book.reach(CHAIN)
    assert not book.is_suspected(B)


@pytest.mark.parametrize("told", [[], [view(B, is_live=False)]], ids=["of a stranger", "of one that is dead"])
def test_r19_claim_of_a_peer_that_is_not_live_ends_and_what_it_says_then_counts_anew(told: list[PeerView]) -> None:
    book = book_of(B)
    book.tips.hear(CHAIN, B, RoundIndex(9), view(B).head, START)
    assert book.tips.pressing() == [B]
    later = Monotonic(START + LIMITS.progress_timeout_s)
    book.see(told, CHAIN, later)
    assert not book.tips.pressing()
    book.see([view(B)], CHAIN, later)
    assert not book.tips.pressing(), "it came back at our head"
    book.tips.hear(CHAIN, B, RoundIndex(9), view(B).head, later)
    assert book.tips.pressing() == [B]


def test_who_claims_what_could_not_be_confirmed_is_not_present() -> None:
    book = book_of(B, C)
    book.tips.hear(CHAIN, B, RoundIndex(9), view(B).head, START)
    book.tips.failed([B], [], START)
    assert book.present() == {ME, C} and book.is_live(B)
    book.tips.hear(CHAIN, B, CHAIN.height, CHAIN.head, START)
    assert book.present() == {ME, B, C}


def test_a_conflict_ends_after_its_rounds() -> None:
    conflicts = Conflicts()
    conflicts.blame(B, [C, B], RoundIndex(3))
    assert conflicts.pairs(RoundIndex(6)) == {(B, C)}, "nobody complains about itself"
    assert not conflicts.pairs(RoundIndex(7))
    assert conflicts.pairs(RoundIndex(6)), "a fork took us back to a round in which it counts"


def test_conflicts_that_are_over_make_room_for_new_ones() -> None:
    conflicts = Conflicts()
    for index in range(PEERS_MAX):
        conflicts.blame(B, [PeerId(f"p{index}")], RoundIndex(3))
    conflicts.blame(B, [C], RoundIndex(4))
    assert (B, C) not in conflicts.pairs(RoundIndex(4)), "none is over"
    conflicts.blame(B, [C], RoundIndex(9))
    assert conflicts.pairs(RoundIndex(9)) == {(B, C)}


def test_reading_an_unknown_peer_keeps_nothing_and_strangers_have_a_limit() -> None:
    records = PeerRecords()
    assert not records[B].has_departed and not records
    for index in range(PEERS_MAX + 5):
        records.of(PeerId(f"p{index}")).has_departed = True
    assert len(records) == PEERS_MAX
    records.put(B)
    assert B in records, "whom membership knows always has a record"


def test_claim_of_a_peer_that_membership_has_not_heard_of_counts_while_it_talks_to_us() -> None:
    """R19.6: its record was lost or is on its way; two beside a run would else begin one of their own."""
    book, ahead = book_of(C), RoundIndex(9)

    def pressing_after(seconds: float) -> list[PeerId]:
        book.see([view(C)], CHAIN, Monotonic(START + seconds))
        return book.tips.pressing()

    book.tips.hear(CHAIN, B, ahead, view(B).head, START)
    assert pressing_after(1.0) == [B]
    assert pressing_after(LIMITS.progress_timeout_s) == []
    book.tips.hear(CHAIN, B, ahead, view(B).head, Monotonic(START + 60.0))
    assert pressing_after(61.0) == [B]
    book.goodbye(B, has_departed=True)
    assert pressing_after(61.0) == []
    book.tips.hear(CHAIN, C, ahead, view(C).head, Monotonic(START + 60.0))
    book.see([view(C, is_live=False)], CHAIN, Monotonic(START + 61.0))
    assert not book.tips.pressing(), "membership knows that it is gone"


def test_r22_branch_of_the_fewer_has_a_while_to_be_shown_and_twice_as_long_after_each_one_in_vain() -> None:
    chain, stranger = chain_at(2), PeerId("d")
    book, all_s = book_of(B, C, stranger), COMPARED_PROGRESSES * LIMITS.progress_timeout_s
    elsewhere, now = (RoundIndex(9), Digest(b"x" * 32)), START
    for peer in (B, C):
        book.tips.hear(chain, peer, chain.height, chain.head, now)
    for number in range(OVERDUE_MAX + 3):
        book.tips.hear(chain, stranger, *elsewhere, now)
        limit_s = all_s * 2 ** min(number, OVERDUE_MAX)
        assert book.tips.patience_s(chain) == {stranger: limit_s}
        book.tips.failed((stranger,), (), now, overdue=(stranger,))
        rest_s = OVERDUE_REST * limit_s
        book.tips.hear(chain, stranger, *elsewhere, Monotonic(now + rest_s - 1.0))
        assert not book.tips.patience_s(chain), "it is not looked at for most of the time"
        now = Monotonic(now + max(rest_s, BACKOFF_MAX * LIMITS.recovery_retry_s) + 1.0)
    for peer in (B, C):
        book.tips.hear(chain, peer, *elsewhere, now)
    assert not book.tips.patience_s(chain), "those who claim may be the run"


def test_r22_who_is_below_us_on_our_chain_is_with_us_and_who_has_nothing_is_not() -> None:
    """Whoever is first at a new height would else be alone there."""
    chain, stranger = chain_at(2), PeerId("d")
    below = chain.hash_at(RoundIndex(0))
    assert below is not None
    for height, head, is_with_us in ((0, Digest(b"g" * 32), False), (1, below, True), (1, Digest(b"y" * 32), False)):
        book = PeerBook(ME, LIMITS)
        book.see([replace(view(B), height=RoundIndex(height), head=head), view(stranger)], chain, START)
        book.tips.hear(chain, stranger, RoundIndex(9), Digest(b"x" * 32), START)
        assert bool(book.tips.patience_s(chain)) == is_with_us


def test_r22_who_is_on_probation_counts_neither_with_us_nor_with_those_who_claim_another_tip() -> None:
    fresh = [PeerId(f"fresh{number}") for number in range(3)]
    chain = replace(chain_at(2), served={B: 8, C: 8}, probation_rounds=8)
    book, elsewhere = book_of(B, C, *fresh), (RoundIndex(9), Digest(b"x" * 32))
    book.tips.hear(chain, B, chain.height, chain.head, START)
    for peer in fresh:
        book.tips.hear(chain, peer, *elsewhere, START)
    assert book.tips.patience_s(chain), "they would have all the time that they want"
    for peer in (B, C):
        book.tips.hear(chain, peer, *elsewhere, START)
    assert not book.tips.patience_s(chain), "nobody stands with us"
    for peer in fresh:
        book.tips.hear(chain, peer, chain.height, chain.head, START)
    assert not book.tips.patience_s(chain), "an honest branch would be compared in haste"


@pytest.mark.parametrize("seconds", [60.0])
def test_standing_still_moves_claims_and_is_no_phase_time(seconds: float) -> None:
    book = book_of(B)
    book.pace.contributed(B, PhaseId(0), START)
    book.tips.hear(CHAIN, B, RoundIndex(9), view(B).head, START)
    due_at = book.tips.next_due()
    assert due_at is not None
    book.stood_still(seconds)
    assert book.tips.next_due() == due_at + seconds
    assert book.records[B].phases.still_s == seconds


def test_attempt_to_be_in_is_the_latest_but_of_the_restless_the_latest_of_two() -> None:
    words = Readiness()
    words.say(B, ready(attempt=7))
    assert words.latest_attempt({B, C}, Attempt(0), frozenset()) == 7
    assert words.latest_attempt({B, C}, Attempt(0), {B}) == 0
    words.say(C, ready(attempt=5))
    assert words.latest_attempt({B, C}, Attempt(0), {B, C}) == 5
    assert words.latest_attempt({C}, Attempt(0), frozenset()) == 5, "who is not live is not followed"


def test_restless_that_are_fewer_than_a_third_are_not_followed_however_well_they_agree() -> None:
    words, several = Readiness(), [PeerId(f"p{number}") for number in range(8)]
    for peer in several[:2]:
        words.say(peer, ready(attempt=9))
    assert words.latest_attempt(set(several), Attempt(0), set(several[:2])) == 0, "two of eight"
    assert words.latest_attempt(set(several[:6]), Attempt(0), set(several[:2])) == 9, "two of six"
    words.say(several[2], ready(attempt=7))
    assert words.latest_attempt(set(several), Attempt(0), set(several[:3])) == 7, "three of eight"


def test_moment_of_a_message_does_not_matter_for_what_counts_of_two() -> None:
    rich, poor = ready(B), ready()
    assert merged(rich, poor) == merged(poor, rich) == rich
    assert merged(ready(attempt=2), rich).attempt == merged(rich, ready(attempt=2)).attempt == 2


def test_ids_without_end_push_out_nobody_who_is_there_and_first_of_whom_nothing_is_noted() -> None:
    """Membership keeps a thousand at a time; who makes new ids all the time would fill this book for ever."""
    book = book_of(B, C)
    for _ in range(SUSPICION_MAX + 1):
        book.raised(C)
    claimant = PeerId("claims")
    book.tips.hear(CHAIN, claimant, RoundIndex(CHAIN.height + 9), Digest(b"x" * 32), START)
    for first in range(0, 2 * PEERS_MAX, 1000):
        wave = [view(PeerId(f"fresh{first + number}")) for number in range(1000)]
        book.see([view(B), *wave], CHAIN, START)
        assert len(book.records) <= PEERS_MAX
    assert book.is_live(B) and book.records[C].suspicion > SUSPICION_MAX
    assert PeerId("fresh0") not in book.records and book.is_live(wave[-1].peer)
    known = {*book.tips.claims, *book.tips.unconfirmed, *book.tips.pressing()}
    assert known <= book.records.keys(), "what is forgotten is listed nowhere"
