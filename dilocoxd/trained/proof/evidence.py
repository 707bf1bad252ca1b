"""Evidence of a false sum, checked by somebody who has only the folder, the run's manifest and a log of its chain.

The folder's own word is taken for nothing but which entry and segment to look at, and who is said to have owned it:
shares are held against the roots in the log's entry, and what the chain says is read from the log.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import StoreError, WireError
from dilocoxd.outer.reduce import BadShareError
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.outerworker.results.again import sum_again
from dilocoxd.store.audits import BEFORE_NAME, read_case, share_name
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.store.log_record import read_result
from dilocoxd.trained.chain import ChainLink, read_chain
from dilocoxd.wire.audit import AuditCase
from dilocoxd.wire.clip_record import NORMS_KEPT, NUMBER_BYTES
from dilocoxd.wire.entry import Entry, Signature, missing_contributors


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


def check_evidence(manifest: Manifest, log: Path, folder: Path) -> EvidenceCheck:
    """Raises StoreError for a folder or log that cannot be read, ConfigError for a manifest that no site can follow."""
    case, plan = read_case(folder), make_plan(manifest)
    is_proved, why = _judged(plan, case, log, folder)
    return EvidenceCheck(
        str(folder), int(case.entry.round), case.segment, case.owner, is_proved, why, case.entry, case.offers
    )


def _judged(plan: OuterPlan, case: AuditCase, log: Path, folder: Path) -> tuple[bool, str]:
    number, num_segments = int(case.entry.round), len(plan.segments)
    chain = list(read_chain(log, plan.manifest, number + 1)) if _has_entry(log, plan.manifest, number) else []
    if not chain or chain[number].entry != case.entry:
        return False, f"entry {number} of this log is another one: nothing was committed that this could prove false"
    if unproved := case.unproved(num_segments):
        return False, f"share {unproved[0]} is not under the root that its contributor signed"
    for place, share in enumerate(case.proofs):
        if _sha256(folder / share_name(place)) != share.sha256:
            return False, f"the file of share {place} is not what the folder says"
    if problem := _chain_problem(plan, case, chain, folder):
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


def _chain_problem(plan: OuterPlan, case: AuditCase, chain: list[ChainLink], folder: Path) -> str:
    """What the folder says of the chain otherwise than the log; empty if nothing."""
    *before, _ = chain
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


def _has_entry(log: Path, manifest: Manifest, number: int) -> bool:
    try:
        return sum(1 for _ in read_chain(log, manifest, number + 1)) > number
    except StoreError:
        return False


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
