"""Records: only what a peer signed itself is believed; hostile bytes raise nothing but WireError."""

import contextlib
import dataclasses
import math
from collections import Counter
from pathlib import Path

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hypothesis import given, strategies as st

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.discovery.records import CLOCK_SKEW_MAX_MS, RecordBook, sign_record, verify_record
from dilocoxd.swarm.p2pd.hints import OnlyOurRecords
from dilocoxd.wire.messages import PROTOCOL_MAJOR
from dilocoxd.wire.records import (
    PeerRecord,
    SignedRecord,
    decode_record,
    decode_signed,
    encode_record,
    encode_signed,
    record_text,
)
from tests.reference.state_digest import EMPTY_DIGEST

RUN = RunId("demo-0123456789abcdef")
NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> identity.Identity:
    return identity.create(tmp_path_factory.mktemp("mine") / "identity.key")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> identity.Identity:
    return identity.create(tmp_path_factory.mktemp("other") / "identity.key")


def record_of(peer: PeerId, /, **changes: object) -> PeerRecord:
    record = PeerRecord(
        peer, RUN, PROTOCOL_MAJOR, 0, 1, 1, NOW_MS, 30_000, "training", ("/ip4/10.0.0.1/tcp/31337",), EMPTY_DIGEST,
        0, 0, EMPTY_DIGEST, -1, 1500, 100, 0,
    )  # fmt: skip
    return dataclasses.replace(record, **changes)  # type: ignore[arg-type]


def test_record_survives_the_wire(mine: identity.Identity) -> None:
    record = record_of(mine.peer_id)
    assert verify_record(sign_record(mine, record), RUN) == record


@pytest.mark.parametrize(
    "changes",
    [
        {"peer": "QmNot0base58"},
        {"state": "hacking"},
        {"addresses": ("/ip4/1.2.3.4/udp/1/quic-v1",)},
        {"addresses": ("/unix/etc/passwd",)},
        {"addresses": ("/ip4/999.1.1.1/tcp/31337",)},
        {"addresses": ("/ip4/::1/tcp/31337",)},
        {"addresses": ("/ip4/10.0.0.1/tcp/70000",)},
        {"addresses": tuple(f"/ip4/10.0.0.1/tcp/{n}" for n in range(17))},
        {"milli_steps_per_s": 1.5},
        {"tokens_per_s": -1},
        {"chain_head": b"short"},
        {"ttl_ms": 10**9},
        {"contributed_round": -2},
        {"sequence": True},
    ],
)
def test_record_that_breaks_a_rule_is_refused_on_both_sides(
    mine: identity.Identity, changes: dict[str, object]
) -> None:
    from dilocoxd.wire.codec import encode_struct

    record = record_of(mine.peer_id, **changes)
    with pytest.raises(WireError):
        encode_record(record)
    with pytest.raises(WireError):
        decode_record(encode_struct(record))


def test_record_signed_by_somebody_else_is_refused(mine: identity.Identity, other: identity.Identity) -> None:
    forged = sign_record(other, record_of(mine.peer_id))
    with pytest.raises(WireError, match="bad_signature"):
        verify_record(forged, RUN)


def test_signature_covers_every_byte_of_the_record(mine: identity.Identity) -> None:
    signed = decode_signed(sign_record(mine, record_of(mine.peer_id)))
    body = encode_record(record_of(mine.peer_id, chain_weight=1))
    with pytest.raises(WireError, match="bad_signature"):
        verify_record(encode_signed(SignedRecord(body, signed.public_key, signed.signature)), RUN)


def test_signature_of_another_domain_is_no_record(mine: identity.Identity) -> None:
    body = encode_record(record_of(mine.peer_id))
    vote = record_text(body).replace(b"/record", b"/vote")
    with pytest.raises(WireError, match="bad_signature"):
        verify_record(encode_signed(SignedRecord(body, mine.public_key_der, mine.sign(vote))), RUN)


def test_other_run_other_version_and_oversize_have_their_own_codes(mine: identity.Identity) -> None:
    for changes, code in [
        ({"run_id": RunId("x-0123456789abcdef")}, "wrong_run"),
        ({"protocol_major": PROTOCOL_MAJOR + 1}, "wrong_protocol"),
    ]:
        with pytest.raises(WireError) as refused:
            verify_record(sign_record(mine, record_of(mine.peer_id, **changes)), RUN)
        assert refused.value.code == code
    with pytest.raises(WireError, match="too_large"):
        verify_record(bytes(8193), RUN)


@given(st.binary(max_size=600))
def test_random_bytes_raise_only_wire_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        verify_record(data, RUN)
    with contextlib.suppress(WireError):
        decode_record(data)


@given(st.data())
def test_damaged_records_raise_wire_error(data: st.DataObject) -> None:
    record = record_of(PeerId("Qm" + "a" * 44))
    good = encode_signed(SignedRecord(encode_record(record), b"k" * 294, b"s" * 256))
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with pytest.raises(WireError):
        verify_record(bytes(damaged), RUN)


def test_book_keeps_the_newest_and_ignores_old_news(mine: identity.Identity, other: identity.Identity) -> None:
    book = RecordBook(mine.peer_id, RUN)
    first, second = (sign_record(other, record_of(other.peer_id, sequence=n)) for n in (1, 2))
    restarted = sign_record(other, record_of(other.peer_id, incarnation=2, sequence=0))
    assert book.add(second, NOW_MS) is not None
    assert book.add(first, NOW_MS) is None
    assert book.add(second, NOW_MS) is None
    assert book.add(restarted, NOW_MS) is not None
    assert book.data(other.peer_id) == restarted


def test_book_pushes_our_own_record_first(mine: identity.Identity, other: identity.Identity) -> None:
    book = RecordBook(mine.peer_id, RUN)
    ours, theirs = sign_record(mine, record_of(mine.peer_id)), sign_record(other, record_of(other.peer_id))
    book.add(ours, NOW_MS)
    book.add(theirs, NOW_MS)
    assert book.to_push(10) == (ours, theirs)
    assert book.to_push(1) == (ours,)


def test_record_from_the_future_is_a_clock_error(mine: identity.Identity, other: identity.Identity) -> None:
    book = RecordBook(mine.peer_id, RUN)
    ahead = sign_record(other, record_of(other.peer_id, unix_ms=NOW_MS + CLOCK_SKEW_MAX_MS + 1))
    with pytest.raises(WireError, match="NTP"):
        book.add(ahead, NOW_MS)


def test_dht_may_not_keep_a_record_longer_than_its_peer_signed(mine: identity.Identity) -> None:
    book = RecordBook(mine.peer_id, RUN)
    data = sign_record(mine, record_of(mine.peer_id))
    assert book.check_hint(data, NOW_MS / 1000 + 30, NOW_MS) == mine.peer_id
    with pytest.raises(WireError, match="outlive"):
        book.check_hint(data, NOW_MS / 1000 + 30 + CLOCK_SKEW_MAX_MS / 1000 + 1, NOW_MS)


@pytest.mark.parametrize("expiration_s", [math.nan, math.inf])
def test_dht_keeps_no_record_until_a_moment_that_never_comes(
    mine: identity.Identity, other: identity.Identity, expiration_s: float
) -> None:
    """hivemind puts what expires first in front: behind a NaN nothing ever went."""
    book, counts = RecordBook(mine.peer_id, RUN), Counter[str]()

    def check(data: bytes, until_s: float) -> PeerId:
        return book.check_hint(data, until_s, NOW_MS)

    rule = OnlyOurRecords("hints", check, lambda code: counts.update([code]))
    data, key = sign_record(other, record_of(other.peer_id)), DHTID.generate(source="hints")
    subkey, value = msgpack.packb(str(other.peer_id)), msgpack.packb(data)
    assert rule.validate(DHTRecord(key.to_bytes(), subkey, value, NOW_MS / 1000 + 30))
    assert not rule.validate(DHTRecord(key.to_bytes(), subkey, value, expiration_s))
    assert counts == {"out_of_range": 1}


def test_encoded_record_is_small(mine: identity.Identity, tmp_path: Path) -> None:
    addresses = tuple(f"/ip4/100.100.100.{n}/tcp/31337" for n in range(16))
    assert len(sign_record(mine, record_of(mine.peer_id, addresses=addresses))) < 2048
