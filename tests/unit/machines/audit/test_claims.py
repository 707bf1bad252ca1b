"""What others tell of false results: which of it is looked at, and how often (X14)."""

from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.audit.claims import SILENCED_ROUNDS, TELLERS_MAX, Accusation, Claims
from dilocoxd.machines.chain import RECENT_ENTRIES

A, B, OWNER = PeerId("Qma"), PeerId("Qmb"), PeerId("Qmc")
ENTRY = Digest(b"e" * 32)


def claim(teller: PeerId = A, number: int = 9, segment: int = 3, digest: Digest = ENTRY) -> Accusation:
    return Accusation(teller, RoundIndex(number), digest, segment)


def test_newest_entries_alone_are_looked_at_and_each_teller_waits_with_one() -> None:
    claims = Claims()
    assert not claims.hear(claim(number=10), OWNER, 10), "no such entry yet"
    assert not claims.hear(claim(number=9 - RECENT_ENTRIES), OWNER, 10)
    assert claims.hear(claim(number=10 - RECENT_ENTRIES), OWNER, 10)
    assert not claims.hear(claim(), OWNER, 10), "its first one waits"
    assert claims.hear(claim(B), OWNER, 10), "who tells of it first may show nothing: a second one has its turn"
    assert [claims.next(), claims.next(), claims.next()] == [claim(number=10 - RECENT_ENTRIES), claim(B), None]


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
    claims.in_vain(A, 10, is_refuted=True)
    assert not claims.hear(claim(number=9 + SILENCED_ROUNDS - 1), OWNER, 10 + SILENCED_ROUNDS - 1)
    assert claims.hear(claim(number=9 + SILENCED_ROUNDS), OWNER, 10 + SILENCED_ROUNDS)
    assert claims.hear(claim(B), OWNER, 10), "it says nothing of others"


def test_who_shows_nothing_in_time_waits_twice_as_long_each_time() -> None:
    claims, height, waits = Claims(), 10, []
    for _ in range(8):
        claims.in_vain(A, height, is_refuted=False)
        before = height
        while not claims.hear(claim(number=height - 1), OWNER, height):
            height += 1
        claims.next()
        waits.append(height - before)
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64]
