"""A result is false only if everything that says so is proved."""

import hashlib
from dataclasses import replace

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.audit.verdict import Summed, is_sound, judge
from dilocoxd.wire.audit import AuditCase, ShareProof, decode_case, encode_case
from dilocoxd.wire.entry import Contribution, Entry, Signature
from dilocoxd.wire.merkle import MerkleTree

SEGMENTS = 5
RESULT = hashlib.sha256(b"what follows").digest()
LIE = hashlib.sha256(b"another sum").digest()


def made(result: bytes = RESULT, segment: int = 3) -> AuditCase:
    """An entry of two whose result of `segment` is this."""
    contributions, proofs = [], []
    for peer in ("Qma", "Qmb"):
        tree = MerkleTree([hashlib.sha256(f"{peer} {number}".encode()).digest() for number in range(SEGMENTS)])
        contributions.append(Contribution(PeerId(peer), PhaseId(4), RoundIndex(1), 10, 100, tree.root))
        share = hashlib.sha256(f"{peer} {segment}".encode()).digest()
        proofs.append(ShareProof(share, tree.proof(segment)))
    hashes = tuple(result if number == segment else bytes(32) for number in range(SEGMENTS))
    entry = Entry("run", RoundIndex(2), bytes(32), bytes(32), tuple(contributions), hashes, 0, 0, 10, (), ())
    return AuditCase(entry, (Signature(b"k", b"s"),) * 2, segment, "Qmb", 0, b"", tuple(proofs))


def hashes_of(case: AuditCase) -> list[bytes]:
    return [share.sha256 for share in case.proofs]


def test_sound_result_is_sound() -> None:
    assert is_sound(made(), Summed(RESULT))
    assert not is_sound(made(), Summed(LIE))
    assert judge(made(), SEGMENTS, hashes_of(made()), [Summed(RESULT)] * 2).verdict == "sound"


def test_false_result_is_false_and_says_both_hashes() -> None:
    case = made(LIE)
    found = judge(case, SEGMENTS, hashes_of(case), [Summed(RESULT), Summed(RESULT)])
    assert (found.verdict, found.segment) == ("false", 3)
    assert RESULT.hex()[:16] in found.why
    assert LIE.hex()[:16] in found.why


def test_result_of_a_share_that_nobody_can_sum_is_false() -> None:
    case = made(LIE)
    found = judge(case, SEGMENTS, hashes_of(case), [Summed(bad_place=1)] * 2)
    assert found.verdict == "false"
    assert "Qmb" in found.why


@pytest.mark.parametrize("place", [0, 1])
def test_nobody_is_accused_with_bytes_that_changed_meanwhile(place: int) -> None:
    """As a buffer does that holds the next round by then."""
    case = made(LIE)
    read = hashes_of(case)
    read[place] = hashlib.sha256(b"the next round").digest()
    assert judge(case, SEGMENTS, read, [Summed(RESULT)] * 2).verdict == "unproved"
    assert judge(case, SEGMENTS, read[:1], [Summed(RESULT)] * 2).verdict == "unproved"


def test_nobody_is_accused_with_a_share_that_was_not_signed() -> None:
    case = made(LIE)
    other = ShareProof(hashlib.sha256(b"mine").digest(), case.proofs[0].proof)
    forged = replace(case, proofs=(other, case.proofs[1]))
    assert judge(forged, SEGMENTS, hashes_of(forged), [Summed(RESULT)] * 2).verdict == "unproved"
    moved = replace(case, segment=2)
    assert judge(moved, SEGMENTS, hashes_of(moved), [Summed(LIE)] * 2).verdict == "unproved"
    assert judge(case, SEGMENTS + 4, hashes_of(case), [Summed(RESULT)] * 2).verdict == "unproved"


def test_nobody_is_accused_by_a_machine_that_sums_differently_each_time() -> None:
    case = made(LIE)
    assert judge(case, SEGMENTS, hashes_of(case), [Summed(RESULT), Summed(bytes(32))]).verdict == "unproved"


def test_case_survives_its_bytes_and_nonsense_is_refused() -> None:
    case = made()
    assert decode_case(encode_case(case)) == case
    half_a_norm = replace(case, recent=b"\x80?\x80")
    for broken in (replace(case, proofs=case.proofs[:1]), replace(case, segment=SEGMENTS), half_a_norm):
        with pytest.raises(WireError, match="malformed"):
            decode_case(encode_case(broken))
