"""What an audit found: judged from hashes alone, and never a lie while our own inputs are not proved.

A site's memory, its disk or a peer's answer may be wrong without anybody lying. So a result counts as false only when
every share, read again, is under the root that its contributor signed, and two sums of these very bytes agree with
each other and not with the entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dilocoxd.wire.audit import AuditCase

Verdict = Literal["sound", "false", "unanswered", "unproved"]
"""`unanswered`: somebody did not give its share. `unproved`: we cannot say, for a reason of our own."""


@dataclass(frozen=True, slots=True)
class Summed:
    """What came of one sum: the hash of the result, or the place of a share from which none follows."""

    sha256: bytes = b""
    bad_place: int | None = None


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Of one segment. `why`: one sentence, empty if it is sound. `peers`: who did not answer."""

    verdict: Verdict
    segment: int
    why: str = ""
    peers: tuple[str, ...] = ()


def is_sound(case: AuditCase, summed: Summed) -> bool:
    """The owner returned what follows from the shares."""
    return summed.bad_place is None and summed.sha256 == case.entry.result_hashes[case.segment]


def judge(case: AuditCase, num_segments: int, read_again: Sequence[bytes], sums: Sequence[Summed]) -> AuditFinding:
    """After a first sum that was not sound. `read_again`: sha256 of each share's file after it was summed, in the
    entry's order; `sums`: all that were made."""
    names = [named.peer for named in case.entry.contributions]
    changed = {
        place
        for place, share in enumerate(case.proofs)
        if place >= len(read_again) or read_again[place] != share.sha256
    }
    if unproved := sorted({*case.unproved(num_segments), *changed}):
        who = ", ".join(names[place] for place in unproved[:3])
        return AuditFinding("unproved", case.segment, f"the bytes at hand are not what {who} signed")
    if len(set(sums)) != 1:
        return AuditFinding("unproved", case.segment, "two sums of the same bytes differ: this machine errs")
    if is_sound(case, sums[0]):
        return AuditFinding("sound", case.segment)
    if (place := sums[0].bad_place) is not None:
        why = f"the share of {names[place]} does not decode, so no result follows from what was offered"
    else:
        why = (
            f"the offered shares give {sums[0].sha256.hex()[:16]}, the entry has"
            f" {case.entry.result_hashes[case.segment].hex()[:16]}"
        )
    return AuditFinding("false", case.segment, why)
