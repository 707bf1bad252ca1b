"""protocol/vectors/chain.json against the implementation (protocol O1, O2, O4, E7, E8, I1, I4, I5, I6, I7, R4, R20)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any

import pytest

from dilocoxd.daemon.round.signing import vote_keys
from dilocoxd.errors import WireError
from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import RoundLimits, VoteKeys
from dilocoxd.machines.recovery.branch import Branch, check_branch
from dilocoxd.machines.round.grouping import coordinator_order
from dilocoxd.swarm.discovery.identity import create, peer_id_of
from dilocoxd.swarm.discovery.records import verify_record
from dilocoxd.wire.codec import _flatten
from dilocoxd.wire.entry import decode_entry, encode_entry, entry_hash, entry_unix_ms, genesis_hash, payload_root
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, Hello
from dilocoxd.wire.records import decode_signed, encode_record, encode_signed
from dilocoxd.wire.state_digest import AnchorStream, leaf_of, root_of
from tests.conformance.vectors import from_json, loaded
from tests.reference.frame_decoder import FrameDecoder
from tests.reference.state_digest import state_digest

LOADED: dict[str, Any] = loaded("chain")
RUN_ID = RunId(LOADED["run_id"])
GENESIS = Digest(bytes.fromhex(LOADED["genesis"]))
LIMITS = RoundLimits(tokens_max=10**6, inner_steps_max=1000)


def label(row: dict[str, Any]) -> str:
    return str(row["broken"]).replace(" ", "_")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> VoteKeys:
    return vote_keys(create(tmp_path_factory.mktemp("identity") / "key"), GENESIS)


def genesis_view() -> ChainView:
    return ChainView(RUN_ID, RoundIndex(0), GENESIS, Digest(bytes(32)))


@pytest.mark.parametrize("row", LOADED["peers"], ids=lambda row: row["peer"])
def test_peer_id_follows_from_the_key(row: dict[str, str]) -> None:
    assert peer_id_of(bytes.fromhex(row["public_key"])) == row["peer"]


def test_genesis_follows_from_run_and_manifest() -> None:
    digest = hashlib.sha256(LOADED["manifest"].encode()).digest()
    assert genesis_hash(RUN_ID, digest) == GENESIS
    assert RUN_ID.endswith(digest.hex()[:16])


@pytest.mark.parametrize("row", LOADED["state_digests"], ids=lambda row: str(row["round"]))
def test_state_is_called_by_the_tree_over_its_segments(row: dict[str, Any]) -> None:
    leaves, lengths, stream, contents = [], [], b"", []
    for index, segment in enumerate(row["segments"]):
        anchor, momentum = (struct.pack(f"<{len(segment[n])}f", *segment[n]) for n in ("anchor", "momentum"))
        rest = (momentum, bytes.fromhex(segment["memory"]))
        leaves.append(leaf_of(index, anchor, rest))
        assert leaves[-1].whole.hex() == segment["segment_hash"]
        lengths.append(len(anchor))
        stream += anchor
        contents.append(anchor + b"".join(rest))
    root = root_of(row["round"], bytes.fromhex(row["header"]), leaves)
    assert (root.anchor_sha256.hex(), root.state_digest.hex()) == (row["anchor_hash"], row["state_digest"])
    assert state_digest(row["round"], bytes.fromhex(row["header"]), contents) == root.state_digest
    for piece in (1, 7, len(stream)):
        read = AnchorStream(lengths)
        for start in range(0, len(stream), piece):
            assert not read.is_complete
            read.add(stream[start : start + piece])
        assert read.is_complete and read.anchor_sha256 == root.anchor_sha256
        with pytest.raises(ValueError, match="more bytes"):
            read.add(b"x")


@pytest.mark.parametrize("row", LOADED["records"], ids=lambda row: row["body"][-8:])
def test_record_verifies_and_encodes_to_its_bytes(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["bytes"])
    record = verify_record(data, RUN_ID)
    assert _flatten(record) == from_json(row["fields"])
    assert encode_record(record).hex() == row["body"]
    assert encode_signed(decode_signed(data)) == data


@pytest.mark.parametrize("row", LOADED["broken_records"], ids=label)
def test_broken_record_is_refused_with_its_code(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        verify_record(bytes.fromhex(row["bytes"]), RUN_ID)
    assert caught.value.code == row["code"]


def test_chain_hashes_and_votes_are_right(keys: VoteKeys) -> None:
    entries = [decode_entry(bytes.fromhex(row["bytes"])) for row in LOADED["entries"]]
    for signed, row in zip(entries, LOADED["entries"], strict=True):
        assert _flatten(signed.entry) == from_json(row["fields"])
        assert entry_hash(signed.entry).hex() == row["hash"]
        assert encode_entry(signed).hex() == row["bytes"]
        assert entry_unix_ms(signed) == row["unix_ms"]
    check_branch(Branch(0, tuple(entries)), genesis_view(), LIMITS, keys)


def test_payload_root_is_the_merkle_root_of_the_first_pass() -> None:
    first = decode_entry(bytes.fromhex(LOADED["entries"][0]["bytes"])).entry.contributions[0]
    segments = tuple(hashlib.sha256(f"{first.peer} {first.phase} {s}".encode()).digest() for s in range(3))
    assert payload_root(segments) == first.payload_root


@pytest.mark.parametrize("row", LOADED["broken_entries"], ids=label)
def test_broken_entry_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        decode_entry(bytes.fromhex(row["bytes"]))
    assert caught.value.code == "malformed"


@pytest.mark.parametrize("row", LOADED["broken_branches"], ids=label)
def test_branch_that_breaks_a_rule_is_refused_with_its_code(row: dict[str, Any], keys: VoteKeys) -> None:
    entries = tuple(decode_entry(bytes.fromhex(data)) for data in row["entries"])
    with pytest.raises(WireError) as caught:
        check_branch(Branch(0, entries), genesis_view(), LIMITS, keys)
    assert caught.value.code == row["code"]


@pytest.mark.parametrize("row", LOADED["probation"], ids=label)
def test_branch_with_peers_on_probation_is_taken_or_refused_with_its_code(row: dict[str, Any], keys: VoteKeys) -> None:
    entries = tuple(decode_entry(bytes.fromhex(data)) for data in row["entries"])
    num = row["probation_rounds"]
    base = replace(genesis_view(), probation_rounds=num, served={PeerId(peer): num for peer in row["founders"]})
    if not row["broken"]:
        check_branch(Branch(0, entries), base, LIMITS, keys)
        return
    with pytest.raises(WireError) as caught:
        check_branch(Branch(0, entries), base, LIMITS, keys)
    assert caught.value.code == row["code"]


@pytest.mark.parametrize("row", LOADED["coordinators"], ids=lambda row: f"{row['round']}-{row['attempt']}")
def test_coordinators_come_in_the_order_of_the_vectors(row: dict[str, Any]) -> None:
    peers = [PeerId(item["peer"]) for item in LOADED["peers"]]
    assert coordinator_order(RUN_ID, RoundIndex(row["round"]), Attempt(row["attempt"]), peers) == row["order"]


def test_hello_is_a_frame_with_our_record() -> None:
    (frame,) = FrameDecoder().feed(bytes.fromhex(LOADED["hello"]))
    message = PEER_MESSAGES.decode(frame.payload)
    assert frame.kind is FrameKind.HELLO and isinstance(message, Hello)
    assert message.run_id == RUN_ID
    assert verify_record(message.record, RUN_ID).peer == LOADED["peers"][0]["peer"]
