"""Roots and proofs of protocol/07-exchange.md X10 are those of the golden vectors; every broken proof is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from dilocoxd.errors import WireError
from dilocoxd.wire.audit import ShareProof, SumProof, decode_sum_proof, encode_sum_proof, sum_proof_bytes_max
from dilocoxd.wire.merkle import PROOF_MAX, MerkleTree, is_under, merkle_root
from tests.conformance.vectors import loaded

LOADED = loaded("merkle")


def _is_under(row: dict[str, Any]) -> bool:
    proof = [bytes.fromhex(value) for value in row["proof"]]
    value, root = bytes.fromhex(row["segment_hash"]), bytes.fromhex(row["root"])
    return is_under(root, value, row["index"], row["leaves"], proof)


@pytest.mark.parametrize("row", LOADED["proofs"], ids=lambda row: f"{row['index']}-of-{row['leaves']}")
def test_root_and_proof_are_those_of_the_vectors(row: dict[str, Any]) -> None:
    tree = MerkleTree([hashlib.sha256(b"segment %d" % index).digest() for index in range(row["leaves"])])
    assert tree.root.hex() == row["root"]
    assert [value.hex() for value in tree.proof(row["index"])] == row["proof"]
    assert _is_under(row)


@pytest.mark.parametrize("row", LOADED["broken_proofs"], ids=lambda row: row["broken"])
def test_broken_proof_is_refused(row: dict[str, Any]) -> None:
    assert not _is_under(row)


@pytest.mark.parametrize("row", LOADED["sum_proofs"], ids=lambda row: f"{row['contributions']}-of-{row['leaves']}")
def test_proof_against_a_result_decodes_and_each_share_is_under_its_root(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["bytes"])
    proof = decode_sum_proof(data, row["contributions"])
    assert encode_sum_proof(proof) == data and len(data) <= sum_proof_bytes_max(row["contributions"])
    for root, share in zip(row["roots"], proof.shares, strict=True):
        assert is_under(bytes.fromhex(root), share.sha256, row["index"], row["leaves"], share.proof)


@pytest.mark.parametrize("row", LOADED["broken_sum_proofs"], ids=lambda row: row["broken"])
def test_broken_proof_against_a_result_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode_sum_proof(bytes.fromhex(row["bytes"]), row["contributions"])


def test_largest_proof_against_a_result_fits_its_limit() -> None:
    largest = SumProof((ShareProof(bytes(32), (bytes(32),) * PROOF_MAX),) * 1024)
    data = encode_sum_proof(largest)
    assert decode_sum_proof(data, 1024) == largest and len(data) <= sum_proof_bytes_max(1024)
    with pytest.raises(WireError, match="bytes, at most"):
        decode_sum_proof(data, 3)


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=70, unique=True), st.data())
def test_proof_shows_its_own_leaf_and_no_other(hashes: list[bytes], data: st.DataObject) -> None:
    tree = MerkleTree(hashes)
    index = data.draw(st.integers(0, len(hashes) - 1))
    proof = tree.proof(index)
    assert len(proof) <= PROOF_MAX
    assert is_under(tree.root, hashes[index], index, len(hashes), proof)
    other = data.draw(st.integers(0, len(hashes) - 1))
    assert is_under(tree.root, hashes[index], other, len(hashes), proof) == (other == index)


def test_tree_of_nothing_and_leaf_of_nowhere_are_errors() -> None:
    with pytest.raises(ValueError, match="at least one leaf"):
        merkle_root([])
    with pytest.raises(IndexError, match="no leaf 2 among 2"):
        MerkleTree([bytes(32), bytes(32)]).proof(2)
