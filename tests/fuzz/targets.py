"""Everything that reads bytes of strangers, or of a disk that may lie: one function each, with good bytes to start."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.daemon.peers.serving import parse_chain
from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import Digest, RunId
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.machines.peers.double_votes import is_proved
from dilocoxd.store.log_record import PAYLOAD_AT, encode_around, encode_front, read_record
from dilocoxd.store.snapshots import SnapshotFile, SnapshotIndex, decode_index
from dilocoxd.swarm.discovery.identity import is_signed_by
from dilocoxd.swarm.discovery.records import verify_record
from dilocoxd.swarm.streams.pieces import PieceSet
from dilocoxd.wire.admission import decode_membership, decode_revocation
from dilocoxd.wire.audit import AuditCase, ShareProof, decode_case, decode_sum_proof, encode_case
from dilocoxd.wire.authorities import decode_change, pack_changes, unpack_changes
from dilocoxd.wire.codec import Registry
from dilocoxd.wire.entry import SignedVote, VoteFor, decode_entry
from dilocoxd.wire.join_link import read_link
from dilocoxd.wire.layout import ParamSpec, make_layout
from dilocoxd.wire.local.fork_server import FORK_MESSAGES
from dilocoxd.wire.local.node import NODE_MESSAGES
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.messages import PEER_MESSAGES, Accuse
from dilocoxd.wire.records import decode_phase_losses
from tests.conformance.vectors import loaded
from tests.fuzz.others import FORK_SAYS, node_messages, other_decoders
from tests.reference.frame_decoder import FrameDecoder

ALLOWED = (WireError, StoreError)
"""What a decoder may raise; everything else is a crash."""


@dataclass(frozen=True)
class Target:
    """One decoder."""

    name: str
    decode: Callable[[bytes], object]
    corpus: tuple[bytes, ...]


def hexes(rows: list[dict[str, Any]], key: str = "bytes", longest: int = 20_000) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(row[key]) for row in rows if len(row[key]) <= 2 * longest)


def whole_stream(data: bytes, *, is_sealed: bool = False) -> None:
    decoder = FrameDecoder(is_sealed=is_sealed)
    for frame in decoder.feed(data):
        if frame.payload:
            PEER_MESSAGES.decode(frame.payload)
    assert decoder.buffered_bytes <= len(data)
    decoder.finish()


def chain_answer() -> bytes:
    entries = hexes(loaded("chain")["entries"])
    return b"".join(len(data).to_bytes(4, "little") + data for data in entries)


def index() -> bytes:
    file = SnapshotFile("anchor.safetensors", 5_000_000, ("ab" * 32, "cd" * 32))
    return SnapshotIndex("run-1", 7, "aa" * 32, "bb" * 32, "", (file,)).encode()


def audit_case() -> bytes:
    signed = decode_entry(hexes(loaded("chain")["entries"])[0])
    proofs = tuple(ShareProof(named.payload_root, ()) for named in signed.entry.contributions)
    return encode_case(AuditCase(signed.entry, signed.offers, 0, "", 1, b"\x80?", proofs))


def sum_proofs() -> tuple[bytes, ...]:
    merkle = loaded("merkle")
    return hexes([*merkle["sum_proofs"], *merkle["broken_sum_proofs"]])


def log_record() -> bytes:
    signed = decode_entry(hexes(loaded("chain")["entries"])[0])
    return encode_front(signed, (3, 4, 5), has_payload=True) + bytes(12)


def voted_log_record() -> bytes:
    head, rest = encode_around(decode_entry(hexes(loaded("chain")["entries"])[0]), (3, 4, 5))
    return head.ljust(PAYLOAD_AT, b"\0") + bytes(12) + rest


def read_log_record(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(prefix="dilocoxd-fuzz-") as file:
        file.write(data)
        file.flush()
        read_record(Path(file.name))


def bitmap(data: bytes) -> None:
    PieceSet.from_bytes(data, 37)


def segment_targets() -> list[Target]:
    """One target per codec: the first two bytes choose one of its vectors, the rest is the payload."""
    rows = loaded("compression")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in (*rows["valid"], *rows["failing"]):
        if row["numel"] <= 6000:
            found.setdefault(row["codec"], []).append(row)
    return [segment_target(name, chosen) for name, chosen in sorted(found.items())]


def segment_target(name: str, rows: list[dict[str, Any]]) -> Target:
    codecs = [(codec_from_name(row["codec"], **row["options"]), row["numel"]) for row in rows]

    def decode(data: bytes) -> None:
        codec, numel = codecs[int.from_bytes(data[:2], "little") % len(codecs)]
        out = torch.empty(numel)
        codec.decode(data[2:], out)
        assert bool(torch.isfinite(out).all()), "decoded something that is not finite"

    corpus = tuple(n.to_bytes(2, "little") + bytes.fromhex(row["payload"]) for n, row in enumerate(rows))
    return Target(f"segment {name}", decode, corpus)


def lowrank_target() -> Target:
    layout = make_layout([ParamSpec("w", (40, 24)), ParamSpec("b", (5,))], 4096)
    transform = LowRank(layout, 3, codec_from_name("int4"))
    segment = layout.segments[0]
    sizes = [transform.payload_bytes(index, segment) for index in range(2)]

    def decode(data: bytes) -> None:
        out = torch.empty(segment.numel)
        transform.expand(segment, data[sizes[0] :], [data[: sizes[0]]], out)
        assert bool(torch.isfinite(out).all()), "decoded something that is not finite"

    return Target("segment low rank", decode, (bytes(sum(sizes)), bytes([0x3C] * sum(sizes))))


def message_target(name: str, registry: Registry, corpus: tuple[bytes, ...]) -> Target:
    def decode(data: bytes) -> None:
        message = registry.decode(data)
        assert message is None or registry.encode(message) == data, "bytes are not canonical"

    return Target(name, decode, corpus)


def evidence(data: bytes) -> None:
    """Whatever two votes a stranger shows: they prove something or not, with the daemon's check of signatures."""
    message = PEER_MESSAGES.decode(data)
    if isinstance(message, Accuse):
        is_proved(message.evidence, VoteKeys(Digest(bytes(32)), _signs_nothing, is_signed_by))


def _signs_nothing(what: VoteFor) -> SignedVote:
    raise AssertionError("only looks at what others signed")


def accusations() -> tuple[bytes, ...]:
    """Of the chain's vectors."""
    entries = [decode_entry(data) for data in hexes(loaded("chain")["entries"])]
    return tuple(PEER_MESSAGES.encode(Accuse(found)) for signed in entries for found in signed.entry.evidence)


def link(data: bytes) -> None:
    try:
        found = read_link(data.decode("utf-8", "replace"))
    except ValueError as error:
        raise WireError("malformed", str(error)) from error
    assert found.to_text().encode() == data, "the link is not canonical"


def packed_changes(rows: list[dict[str, Any]]) -> bytes:
    """A resource `authorities`."""
    return pack_changes(decode_change(bytes.fromhex(row["bytes"])) for row in rows)


def all_targets() -> list[Target]:
    """Every decoder, in the order of the protocol's chapters."""
    encoding, frames, chain = loaded("encoding"), loaded("frames"), loaded("chain")
    admission = loaded("admission")
    run_id = RunId(chain["run_id"])
    messages = hexes([*encoding["valid"], *encoding["failing"]])
    return [
        Target("frames", whole_stream, hexes([*frames["valid"], *frames["failing"]])),
        Target(
            "frames of data connections",
            lambda data: whole_stream(data, is_sealed=True),
            hexes([*frames["valid"], *frames["failing"]]),
        ),
        message_target("messages", PEER_MESSAGES, messages),
        message_target("local messages", LOCAL_MESSAGES, messages),
        message_target("messages of nodes", NODE_MESSAGES, (*node_messages(), *messages)),
        message_target(
            "messages of the fork server", FORK_MESSAGES, (*map(FORK_MESSAGES.encode, FORK_SAYS), *messages)
        ),
        Target(
            "records", lambda data: verify_record(data, run_id), hexes([*chain["records"], *chain["broken_records"]])
        ),
        Target("entries", decode_entry, hexes([*chain["entries"], *chain["broken_entries"]])),
        Target("evidence", evidence, accusations()),
        Target("memberships", decode_membership, hexes([*admission["memberships"], *admission["broken_memberships"]])),
        Target(
            "revocations",
            decode_revocation,
            hexes([*admission["revocations"], *admission["broken_revocations"], *admission["votes"]]),
        ),
        Target("changes of authorities", decode_change, hexes([*admission["changes"], *admission["broken_changes"]])),
        Target("packed changes", unpack_changes, (packed_changes(admission["changes"]),)),
        Target("links", link, tuple(row["link"].encode() for row in (*admission["links"], *admission["broken_links"]))),
        Target("audit cases", decode_case, (audit_case(),)),
        Target("proofs against results", lambda data: decode_sum_proof(data, 3), sum_proofs()),
        Target("chain answers", lambda data: parse_chain(data, 0), (chain_answer(),)),
        Target(
            "losses of phases",
            lambda data: decode_phase_losses(data, 3),
            hexes([*encoding["losses"], *encoding["broken_losses"]]),
        ),
        Target("snapshot indexes", lambda data: decode_index(data, "stranger"), (index(),)),
        Target("log records", read_log_record, (log_record(), voted_log_record())),
        Target("bitmaps", bitmap, (bytes(5), b"\xff" * 5)),
        *(Target(*one) for one in other_decoders()),
        *segment_targets(),
        lowrank_target(),
    ]
