"""Evidence of a false sum, by somebody who has folder, manifest and log: only what follows from signed bytes proves."""

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from dilocoxd.cli.commands import new_manifest
from dilocoxd.errors import StoreError
from dilocoxd.ids import Attempt, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.chain import RECENT_ENTRIES
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.outerworker.results.again import sum_again
from dilocoxd.store.audits import share_name, write_case, write_votes
from dilocoxd.store.log import EntryLog
from dilocoxd.trained.proof.evidence import VOTED_BELOW, EvidenceCheck, check_evidence
from dilocoxd.wire.audit import AuditCase, ShareProof
from dilocoxd.wire.entry import Contribution, Entry, Signature, SignedEntry, SignedVote, entry_hash, genesis_hash
from dilocoxd.wire.merkle import MerkleTree

PEERS = (PeerId("Qma"), PeerId("Qmb"), PeerId("Qmc"))
SEGMENT = 1
SIGNED = Signature(b"key", b"signature")
CHANGES: dict[str, dict[str, object]] = {
    "strategy": {"codec": "fp32"},
    "reduction": {"owner_feedback": "none", "verify": "after"},
}


@dataclass
class Case:
    """A folder and the log that it is held against."""

    plan: OuterPlan
    folder: Path
    log: Path
    case: AuditCase

    def check(self) -> EvidenceCheck:
        return check_evidence(self.plan.manifest, self.log, self.folder)

    def write(self, **changes: Any) -> "Case":
        """The folder says something else of the case."""
        self.case = replace(self.case, **changes)
        write_case(self.folder, self.case)
        return self

    def commit(self, *, result: bytes | None = None) -> "Case":
        """The log has the entry of the case, with this hash of the result; None: with the right one."""
        told = sum_again(self.plan, self.folder) if result is None else result
        results = list(self.case.entry.result_hashes)
        results[SEGMENT] = told
        entry = replace(self.case.entry, result_hashes=tuple(results))
        vote = SignedVote(PEERS[0], Attempt(0), 0, SIGNED)
        EntryLog(self.log, entry.run_id, entry.parent).append_bare(
            SignedEntry(entry, (SIGNED,) * len(entry.contributions), (vote,)), (1,) * len(results)
        )
        return self.write(entry=entry)

    def share(self, place: int) -> bytes:
        return (self.folder / share_name(place)).read_bytes()


@cache
def plan_of_run() -> OuterPlan:
    """Of a new run: its identity holds the time."""
    return make_plan(new_manifest("tiny", CHANGES))


def made(tmp_path: Path, num_sites: int = 2, seed: int = 0, values: dict[int, float] | None = None) -> Case:
    """The first entry of a run, its shares beside it. `values`: by place, one value of the share."""
    plan = plan_of_run()
    segment = plan.segments[SEGMENT]
    torch.manual_seed(seed)
    folder = tmp_path / "evidence"
    folder.mkdir(parents=True)
    named, proofs = [], []
    for place, peer in enumerate(PEERS[:num_sites]):
        share = torch.randn(segment.numel)
        if values and place in values:
            share[3] = values[place]
        data = share.numpy().tobytes() + bytes(plan.record_bytes)
        (folder / share_name(place)).write_bytes(data)
        digest = hashlib.sha256(data).digest()
        tree = MerkleTree([digest if index == SEGMENT else bytes([index] * 32) for index in range(len(plan.segments))])
        named.append(Contribution(peer, PhaseId(0), RoundIndex(0), 8, 100 + place, tree.root))
        proofs.append(ShareProof(digest, tree.proof(SEGMENT)))
    manifest = plan.manifest
    genesis = genesis_hash(manifest.run_id, manifest.sha256())
    results = (bytes(32),) * len(plan.segments)
    entry = Entry(manifest.run_id, RoundIndex(0), genesis, bytes(32), tuple(named), results, 0, 0, 8, (), ())
    case = AuditCase(entry, (SIGNED,) * num_sites, SEGMENT, str(PEERS[-1]), 0, b"", tuple(proofs))
    return Case(plan, folder, tmp_path / "log", case).write()


@pytest.mark.parametrize("num_sites", [2, 3])
def test_an_honest_sum_proves_nothing_and_another_one_does(num_sites: int, tmp_path: Path) -> None:
    honest = made(tmp_path / "honest", num_sites).commit().check()
    assert not honest.is_proved and "the shares give" in honest.why
    false = made(tmp_path / "false", num_sites).commit(result=b"l" * 32).check()
    assert false.is_proved and f"the entry has {(b'l' * 32).hex()[:16]}" in false.why
    assert (false.round, false.segment, false.owner) == (0, SEGMENT, str(PEERS[-1]))
    assert len(false.offers) == num_sites


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), place=st.integers(0, 1), position=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_no_bit_of_a_share_can_be_other_than_its_contributor_signed(
    seed: int, place: int, position: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Even against a liar other bytes prove nothing."""
    case = made(tmp_path_factory.mktemp("case"), seed=seed).commit(result=b"l" * 32)
    data = bytearray(case.share(place))
    data[position % len(data)] ^= 1 << bit
    (case.folder / share_name(place)).write_bytes(data)
    found = case.check()
    assert not found.is_proved and found.why == f"the file of share {place} is not what the folder says"
    told = list(case.case.proofs)
    told[place] = replace(told[place], sha256=hashlib.sha256(data).digest())
    found = case.write(proofs=tuple(told)).check()
    assert not found.is_proved
    assert found.why == f"share {place} is not under the root that its contributor signed"


def test_share_that_no_owner_can_sum_makes_the_entry_false(tmp_path: Path) -> None:
    found = made(tmp_path, values={1: float("nan")}).commit(result=b"l" * 32).check()
    assert found.is_proved and found.why == f"the share of {PEERS[1]} does not decode"


def test_entry_that_is_not_in_the_log_proves_nothing(tmp_path: Path) -> None:
    case = made(tmp_path).commit(result=b"l" * 32)
    assert case.check().is_proved
    other = replace(case.case.entry, state_digest=b"m" * 32)
    found = case.write(entry=other).check()
    assert not found.is_proved and "entry 0 of this log is another one" in found.why
    later = case.write(entry=replace(other, round=RoundIndex(7))).check()
    assert not later.is_proved and "entry 7 of this log is another one" in later.why
    nowhere = made(tmp_path / "nowhere").check()
    assert not nowhere.is_proved, "there is no log"


def taken_back(tmp_path: Path, voters: tuple[PeerId, ...], attempts: tuple[int, ...] = (0, 0, 0)) -> Case:
    """A false entry 1 that the log does not have, above an entry 0 that it has, with votes beside it."""
    case = made(tmp_path, num_sites=3).commit()
    below = case.case.entry
    results = (*below.result_hashes[:SEGMENT], b"l" * 32, *below.result_hashes[SEGMENT + 1 :])
    case.write(entry=replace(below, round=RoundIndex(1), parent=entry_hash(below), result_hashes=results))
    votes = [SignedVote(peer, Attempt(number), 0, SIGNED) for peer, number in zip(voters, attempts, strict=False)]
    if votes:
        write_votes(case.folder, tuple(votes))
    return case


def test_entry_that_was_taken_back_is_proved_false_by_the_votes_for_it(tmp_path: Path) -> None:
    found = taken_back(tmp_path, PEERS).check()
    assert found.is_proved and "the shares give" in found.why
    assert [vote.peer for vote in found.votes] == list(PEERS), "for whoever checks signatures"
    assert taken_back(tmp_path / "two", PEERS[:2]).check().is_proved, "more than half of those who could vote"
    assert VOTED_BELOW == RECENT_ENTRIES


@pytest.mark.parametrize(
    ("voters", "attempts", "why"),
    [
        ((), (), "nothing was committed"),
        (PEERS[:1], (0,), "1 of 3 who could vote"),
        ((PeerId("Qmx"), PeerId("Qmy"), PEERS[0]), (0, 0, 0), "1 of 3 who could vote"),
        (PEERS, (0, 1, 2), "1 of 3 who could vote"),
    ],
)
def test_entry_that_no_majority_voted_for_proves_nothing(
    voters: tuple[PeerId, ...], attempts: tuple[int, ...], why: str, tmp_path: Path
) -> None:
    found = taken_back(tmp_path, voters, attempts).check()
    assert not found.is_proved and why in found.why


def test_entry_whose_parent_is_not_in_the_log_proves_nothing_whoever_voted(tmp_path: Path) -> None:
    case = taken_back(tmp_path, PEERS)
    found = case.write(entry=replace(case.case.entry, parent=b"p" * 32)).check()
    assert not found.is_proved and "so is the one below" in found.why


def test_what_the_folder_says_of_the_chain_must_be_the_logs(tmp_path: Path) -> None:
    case = made(tmp_path).commit(result=b"l" * 32)
    assert case.write(owner="somebody else").check().is_proved, "who owned it is believed, and changes no sum"
    found = case.write(missing=1).check()
    assert not found.is_proved and "another number of contributors was missing" in found.why


def test_folder_that_cannot_be_read_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    case = made(tmp_path).commit(result=b"l" * 32)
    (case.folder / share_name(1)).unlink()
    with pytest.raises(StoreError, match="share-1"):
        case.check()
    (case.folder / "case").write_bytes(b"no case")
    with pytest.raises(StoreError, match="case"):
        case.check()
