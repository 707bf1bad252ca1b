"""Decoders of what is no message of the protocol: texts of strangers, certificates, files of donors and of friends,
what a head and its nodes, and a daemon and its workers, say to each other."""

from __future__ import annotations

import datetime
import functools
import json
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dilocoxd.cli.run_dir.requests import load_request
from dilocoxd.config.manifest import Manifest, manifest_from_canonical, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.daemon.peers.dial_back import checked
from dilocoxd.errors import ConfigError, WireError, WorkerError
from dilocoxd.ids import PeerId
from dilocoxd.ipc.sealed import KEY_BYTES, LENGTH, SALT_BYTES, Seal, greeting, length_of, salt_of
from dilocoxd.outer.clipping import ClipRecord, decode_record, record_bytes
from dilocoxd.outer.schedule import ScheduleState
from dilocoxd.outerworker.schedule_memory import HEADER_BYTES, Header, decode_header
from dilocoxd.store.tensor_header import TensorEntry, encode_header, read_header
from dilocoxd.swarm.direct.certificates import NODE_SUBJECT, SUBJECT, proven_peer
from dilocoxd.swarm.discovery.corpus import num_bytes_of
from dilocoxd.swarm.discovery.identity import Identity, load
from dilocoxd.swarm.discovery.lan import read_answer
from dilocoxd.wire.admission import InviteTerms
from dilocoxd.wire.audit import CommitVotes, decode_commit_votes, encode_commit_votes
from dilocoxd.wire.authorities import AuthorityTerms, decode_terms
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.entry import decode_entry
from dilocoxd.wire.local.fork_server import Fork, ForkFailed, Preload, WorkerExited
from dilocoxd.wire.local.frames import frame, take_message
from dilocoxd.wire.local.node import (
    NODE_MESSAGES,
    FetchBytes,
    HeadHello,
    KeepFiles,
    NodeHello,
    StartPart,
    ToPart,
    WriteFile,
)
from dilocoxd.wire.local.worker import WorkerFailed, WorkerHello
from tests.conformance.test_round_vectors import private_key
from tests.conformance.vectors import VECTORS, loaded

PLACES = 3
RUN, KEY = bytes(range(32)), bytes(KEY_BYTES)
NODE_SAYS = (
    HeadHello("0.1"),
    NodeHello("0.1", "", "", "n1"),
    StartPart("site 1/2", "a", True, "1/2", b"[run]\n", b""),
    ToPart(b"\x91\x0a"),
    WriteFile("part/a.bin", 0, b"abc"),
    FetchBytes(1, True, "a.bin", 0, 3),
    KeepFiles("work-", ("work-1", "work-2")),
)
FORK_SAYS = (
    Preload(("json",)),
    Fork(1, "json", "m", ("A",), ("b\nc",), ("F",)),
    ForkFailed(1, "no"),
    WorkerExited(1, -9),
)


def refusing(decode: Callable[[bytes], object], *kinds: type[Exception]) -> Callable[[bytes], object]:
    """`decode`, whose own refusals of these kinds are refusals."""

    def decoded(data: bytes) -> object:
        try:
            return decode(data)
        except kinds as error:
            raise WireError("malformed", str(error)) from error

    return decoded


def in_a_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """`read` of a file with the bytes."""

    def decoded(data: bytes) -> object:
        with tempfile.NamedTemporaryFile(prefix="dilocoxd-fuzz-") as file:
            file.write(data)
            file.flush()
            return read(Path(file.name))

    return decoded


@functools.cache
def manifest() -> Manifest:
    """Of some run."""
    tables = preset_tables("tiny")
    tables["run"] = {**tables.get("run", {}), "name": "fuzzed"}
    return manifest_from_tables(tables, source="test")


def fetched_manifest(data: bytes) -> None:
    assert manifest_from_canonical(data, source="a stranger").canonical_bytes() == data


def local_answer(data: bytes) -> None:
    """What multicast brings: names and values, here with zeros between."""
    parts = data.split(b"\0")
    if read_answer(dict(zip(parts[::2], parts[1::2], strict=False)), ["192.168.1.5"], len(data)) is None:
        raise WireError("malformed", "not of the right form")


@functools.cache
def identity() -> Identity:
    """One of the published key pairs."""
    rows = tomllib.loads((VECTORS / "keys.toml").read_text(encoding="utf-8"))["keys"]
    with tempfile.NamedTemporaryFile(prefix="dilocoxd-fuzz-") as file:
        file.write(private_key(rows[0]))
        file.flush()
        return load(Path(file.name))


def certificate(subject: str, until: datetime.datetime) -> bytes:
    """As swarm/direct/certificates.py makes them, but the same each time."""

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    key = ec.derive_private_key(4711, ec.SECP256R1()).public_key()
    since = datetime.datetime(2000, 1, 1)
    made = x509.CertificateBuilder(name(identity().peer_id), name(subject), key, 4711, since, until)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    issued: x509.Certificate = made.sign(identity()._key, hashes.SHA256())
    return issued.public_bytes(serialization.Encoding.DER)


def shown_certificate(data: bytes) -> None:
    keys = {identity().peer_id: identity().public_key_der}
    assert proven_peer(data, keys) == identity().peer_id


def clip_record(data: bytes) -> None:
    """Its length follows from the run."""
    length = record_bytes(PLACES)
    decode_record(data[:length].ljust(length, b"\0"))


def sealed(is_head: bool) -> Seal:
    return Seal(KEY, bytes(2 * SALT_BYTES), is_head=is_head)


def node_stream(data: bytes) -> None:
    """Greeting, then sealed messages, as the head reads them."""
    salt_of(data[: len(GREETED)])
    seal, position = sealed(is_head=True), len(GREETED)
    while position < len(data):
        if len(data) < position + LENGTH.size:
            raise WireError("truncated", "inside a length")
        length = length_of(data[position : position + LENGTH.size])
        position += LENGTH.size
        seal.open(data[position : position + length])
        position += length


GREETED = greeting(bytes(SALT_BYTES))


def said_by_a_node() -> bytes:
    seal = sealed(is_head=False)
    return GREETED + b"".join(seal.frame(message) for message in NODE_SAYS[:2])


def worker_stream(data: bytes) -> None:
    received = bytearray(data)
    while take_message(received) is not None:
        pass


def request_to_sign(terms: InviteTerms | AuthorityTerms, kind: str) -> bytes:
    table = {
        "kind": kind,
        "terms": encode_struct(terms).hex(),
        "authorities": [bytes(32).hex()],
        "signatures": {"0": bytes(64).hex()},
    }
    return json.dumps(table).encode()


NEW_LIST = AuthorityTerms(RUN, 1, RUN, (bytes(32), bytes([1]) * 32), 2, 0)
INVITE = InviteTerms(RUN, 7, bytes(32), 1_800_000_000_000, 5, "contribute", RUN)


def kept_votes() -> bytes:
    (first, *_) = (decode_entry(bytes.fromhex(row["bytes"])) for row in loaded("chain")["entries"])
    return encode_commit_votes(CommitVotes(first.votes))


def tensor_file() -> bytes:
    entries = [TensorEntry("a.weight", (2, 3), "F32"), TensorEntry("b", (1024,), "U8")]
    return encode_header(entries, {"run_id": "r", "round": "3"})


def corpus_index() -> bytes:
    return json.dumps({"num_train_tokens": 10_000, "num_validation_tokens": 500}).encode()


def reach_answer() -> bytes:
    return json.dumps([{"address": "/ip4/203.0.113.7/tcp/31337", "ok": True, "error": ""}]).encode()


def local_told() -> bytes:
    peer = PeerId(identity().peer_id)
    return b"run\0tiny-0123456789abcdef\0admission\0invite\0site\0anna\0peer\0" + peer.encode()


def other_decoders() -> list[tuple[str, Callable[[bytes], object], tuple[bytes, ...]]]:
    """(name, decoder, good bytes to start)."""
    until = datetime.datetime(9999, 12, 31)
    return [
        ("manifests", refusing(fetched_manifest, ConfigError), (manifest().canonical_bytes(),)),
        ("indexes of texts", lambda data: num_bytes_of(data, manifest()), (corpus_index(),)),
        ("answers to reach", checked, (reach_answer(), b"[]")),
        ("answers on the local network", local_answer, (local_told(),)),
        ("certificates", shown_certificate, (certificate(SUBJECT, until), certificate(NODE_SUBJECT, until))),
        ("records of results", clip_record, (ClipRecord(1.5, (1.0, 0.5, 0.0)).encode(PLACES),)),
        (
            "headers of memory",
            refusing(decode_header, WorkerError),
            (Header(ScheduleState(4, 10, 4, 10, 70, (64, 32)), 4).encode(), b"{}".ljust(HEADER_BYTES)),
        ),
        ("headers of tensor files", in_a_file(read_header), (tensor_file(),)),
        ("terms of authorities", decode_terms, (encode_struct(NEW_LIST),)),
        (
            "requests to sign",
            refusing(in_a_file(load_request), ConfigError),
            (request_to_sign(INVITE, "invite"), request_to_sign(NEW_LIST, "authorities")),
        ),
        ("votes beside evidence", decode_commit_votes, (kept_votes(),)),
        ("streams of nodes", node_stream, (said_by_a_node(),)),
        (
            "streams of workers",
            worker_stream,
            (frame(WorkerHello("outer", 1, 0, 0, 1)) + frame(WorkerFailed(1, "busy", "later\non")),),
        ),
    ]


def node_messages() -> tuple[bytes, ...]:
    return tuple(map(NODE_MESSAGES.encode, NODE_SAYS))
