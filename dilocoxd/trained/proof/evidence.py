"""Evidence of a false sum, checked by somebody who has only the folder, the run's manifest and a log of its chain.

The folder's own word is taken for nothing but which entry and segment to look at, and who is said to have owned it:
shares are held against the roots in the log's entry, and what the chain says is read from the log. Of an entry that
was taken back (R29) the log has only what was below it: then votes for it must lie in the folder, of more than half of
those who could vote below it (R14).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import StoreError, WireError
from dilocoxd.outer.reduce import BadShareError
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.outerworker.results.again import sum_again
from dilocoxd.store.audits import BEFORE_NAME, read_case, read_votes, share_name
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.store.log_record import read_result
from dilocoxd.trained.chain import ChainLink, read_chain
from dilocoxd.wire.audit import AuditCase
from dilocoxd.wire.clip_record import NORMS_KEPT, NUMBER_BYTES
from dilocoxd.wire.entry import Entry, Signature, SignedVote, missing_contributors

VOTED_BELOW: Final = 8
"""Who contributed to so many entries before one could vote for it."""


@dataclass(frozen=True, slots=True)
class EvidenceCheck:
    """What a folder shows. `is_proved`: the log's entry has a result that does not follow from what was offered."""

    folder: str
    round: int
    segment: int
    owner: str
    """Who is said to have reduced it."""
    is_proved: bool
    why: str
    entry: Entry
    offers: tuple[Signature, ...]
    votes: tuple[SignedVote, ...] = ()
    """Votes for the entry on which it depends that there was one; empty if the log has it."""


def check_evidence(manifest: Manifest, log: Path, folder: Path) -> EvidenceCheck:
    """Raises StoreError for a folder or log that cannot be read, ConfigError for a manifest that no site can follow."""
    case, plan = read_case(folder), make_plan(manifest)
    number = int(case.entry.round)
    chain = _chain(log, plan.manifest, number + 1)
    has_entry = len(chain) > number and chain[number].entry == case.entry
    before, votes = chain[:number], () if has_entry else read_votes(folder)
    if has_entry or not (why := _not_committed(case.entry, before, votes)):
        is_proved, why = _judged(plan, case, before, folder)
    else:
        is_proved = False
    return EvidenceCheck(
        str(folder), number, case.segment, case.owner, is_proved, why, case.entry, case.offers, votes
    )  # fmt: skip


def _not_committed(entry: Entry, before: list[ChainLink], votes: tuple[SignedVote, ...]) -> str:
    """Why these votes do not show that this entry, which the log does not have, was committed on this chain. Their
    signatures are checked elsewhere."""
    number = int(entry.round)
    told = f"entry {number} of this log is another one"
    if not votes:
        return f"{told}: nothing was committed that this could prove false"
    if not before or len(before) < number or before[-1].head != entry.parent:
        return f"{told}, and so is the one below that of the folder: use a log that has it"
    could = {named.peer for link in before[-VOTED_BELOW:] for named in link.entry.counted}
    did = {vote.peer for vote in votes if vote.attempt == votes[0].attempt}
    if 2 * len(could & did) <= len(could):
        return f"{told}, and {len(could & did)} of {len(could)} who could vote for that of the folder did: too few"
    return ""


def _judged(plan: OuterPlan, case: AuditCase, before: list[ChainLink], folder: Path) -> tuple[bool, str]:
    num_segments = len(plan.segments)
    if unproved := case.unproved(num_segments):
        return False, f"share {unproved[0]} is not under the root that its contributor signed"
    for place, share in enumerate(case.proofs):
        if _sha256(folder / share_name(place)) != share.sha256:
            return False, f"the file of share {place} is not what the folder says"
    if problem := _chain_problem(plan, case, before, folder):
        return False, problem
    try:
        digest = sum_again(plan, folder)
    except BadShareError as error:
        return True, f"the share of {case.entry.contributions[error.position].peer} does not decode"
    except WireError as error:
        return False, error.detail
    expected = case.entry.result_hashes[case.segment]
    told = f"the shares give {digest.hex()[:16]}, the entry has {expected.hex()[:16]}"
    return digest != expected, told


def _chain_problem(plan: OuterPlan, case: AuditCase, before: list[ChainLink], folder: Path) -> str:
    """What the folder says of the chain below the entry otherwise than the log; empty if nothing."""
    window = before[-plan.manifest.strategy.participation_rounds or len(before) :]
    turnout, present = [len(link.entry.counted) for link in window], len(case.entry.contributions)
    if case.missing != missing_contributors(turnout, len(case.entry.counted)):
        return "another number of contributors was missing than the folder says"
    size = plan.record_bytes
    if present == 2 and size:
        recent = b"".join(_result(link, case.segment)[-size:][:NUMBER_BYTES] for link in before[-NORMS_KEPT:])
        if recent != case.recent:
            return "the results before the entry recorded other norms than the folder says"
    if plan.is_centered and before:
        result = _result(before[-1], case.segment)
        if hashlib.sha256(result).digest() != _sha256(folder / BEFORE_NAME):
            return "the result before the entry is another one than the folder's"
    return ""


def _chain(log: Path, manifest: Manifest, stop: int) -> list[ChainLink]:
    """The first `stop` entries, or as many as there are."""
    found: list[ChainLink] = []
    with contextlib.suppress(StoreError):
        found.extend(itertools.islice(read_chain(log, manifest), stop))
    return found


def _result(link: ChainLink, segment: int) -> bytes:
    """Of one segment in the log. Raises StoreError if retention dropped it."""
    if not link.record.has_payload:
        raise StoreError(f"the payload of entry {link.entry.round} was dropped by retention; use a log that has it")
    try:
        return read_result(link.path, link.record, segment)
    except Corrupt as error:
        raise StoreError(f"{error}; use another log") from error


def _sha256(path: Path) -> bytes:
    try:
        return file_sha256(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
