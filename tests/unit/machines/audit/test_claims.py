"""What others tell of false results: which of it is looked at, and how often (X14)."""

from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.audit.claims import (
    SILENCED_ROUNDS,
    STRANGERS_IN_VAIN_MAX,
    TELLERS_MAX,
    Accusation,
    Claims,
)
from dilocoxd.machines.chain import RECENT_ENTRIES

A, B, OWNER = PeerId("Qma"), PeerId("Qmb"), PeerId("Qmc")
ENTRY = Digest(b"e" * 32)


def claim(
    teller: PeerId = A, number: int = 9, segment: int = 3, digest: Digest = ENTRY, *, is_known: bool = True
) -> Accusation:
    return Accusation(teller, RoundIndex(number), digest, segment, is_known=is_known)


def stranger(number: int, height: int = 10) -> Accusation:
    return claim(PeerId(f"Qm{number}"), height - 1, is_known=False)


def test_newest_entries_alone_are_looked_at_and_each_teller_waits_with_one() -> None:
    claims = Claims()
    assert not claims.hear(claim(number=10), OWNER, 10), "no such entry yet"
    assert not claims.hear(claim(number=9 - RECENT_ENTRIES), OWNER, 10)
    assert claims.hear(claim(number=10 - RECENT_ENTRIES), OWNER, 10)
    assert not claims.hear(claim(), OWNER, 10), "its first one waits"
    assert claims.hear(claim(B), OWNER, 10), "who tells of it first may show nothing: a second one has its turn"
    assert [claims.next(10), claims.next(10), claims.next(10)] == [claim(number=10 - RECENT_ENTRIES), claim(B), None]


def test_tellers_that_wait_are_bounded() -> None:
    claims = Claims()
    found = [claims.hear(claim(PeerId(f"Qm{number}")), OWNER, 10) for number in range(TELLERS_MAX + 3)]
    assert found == [True] * TELLERS_MAX + [False] * 3


def test_one_proof_against_an_owner_is_enough_for_an_entry() -> None:
    claims = Claims()
    claims.proved(ENTRY, OWNER)
    assert not claims.hear(claim(segment=4), OWNER, 10)
    assert claims.hear(claim(segment=4), "Qmd", 10), "another owner in it"
    assert claims.hear(claim(B, digest=Digest(b"f" * 32)), OWNER, 10), "another entry of it"


def test_who_showed_nothing_false_is_not_heard_for_long() -> None:
    claims = Claims()
    claims.in_vain(claim(A), 10, is_refuted=True)
    assert not claims.hear(claim(number=9 + SILENCED_ROUNDS - 1), OWNER, 10 + SILENCED_ROUNDS - 1)
    assert claims.hear(claim(number=9 + SILENCED_ROUNDS), OWNER, 10 + SILENCED_ROUNDS)
    assert claims.hear(claim(B), OWNER, 10), "it says nothing of others"


def test_who_shows_nothing_in_time_waits_twice_as_long_each_time() -> None:
    claims, height, waits = Claims(), 10, []
    for _ in range(8):
        claims.in_vain(claim(A), height, is_refuted=False)
        before = height
        while not claims.hear(claim(number=height - 1), OWNER, height):
            height += 1
        claims.next(height)
        waits.append(height - before)
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64]


def test_who_has_a_part_in_the_entry_comes_before_strangers_whatever_their_number() -> None:
    claims = Claims()
    assert all(claims.hear(stranger(number), OWNER, 10) for number in range(TELLERS_MAX))
    assert claims.hear(claim(A), OWNER, 10), "it takes the place of one of them"
    assert not claims.hear(stranger(TELLERS_MAX), OWNER, 10)
    assert claims.next(10, is_beside=True) == claim(A)
    assert claims.next(10, is_beside=True) is None, "strangers wait until nobody else is looked at"
    found = [claims.next(10) for _ in range(TELLERS_MAX)]
    assert found[0] == stranger(0) and found[-2] == stranger(TELLERS_MAX - 2) and found[-1] is None


def test_looks_at_what_strangers_tell_are_bounded_whatever_their_number() -> None:
    claims, height, looks = Claims(), 10, 0
    for number in range(8 * 20):
        height = 10 + number // 20  # 20 new ids at each of 8 heights
        claims.hear(stranger(number, height), OWNER, height)
        if (found := claims.next(height)) is not None:
            claims.in_vain(found, height, is_refuted=bool(number % 2))
            looks += 1
    assert looks == STRANGERS_IN_VAIN_MAX
    assert claims.hear(claim(A, height - 1), OWNER, height), "others are heard all the same"
    assert not claims.hear(stranger(999, 9 + RECENT_ENTRIES), OWNER, 9 + RECENT_ENTRIES)
    assert claims.hear(stranger(999, 10 + RECENT_ENTRIES), OWNER, 10 + RECENT_ENTRIES), "that is over"


def test_strangers_that_wait_are_dropped_when_enough_was_in_vain() -> None:
    claims = Claims()
    assert all(claims.hear(stranger(number), OWNER, 10) for number in range(9))
    for _ in range(STRANGERS_IN_VAIN_MAX):
        found = claims.next(10)
        assert found is not None
        claims.in_vain(found, 10, is_refuted=False)
    assert claims.next(10) is None
    assert claims.hear(stranger(0, 40), OWNER, 40), "its place is free"
