"""Verified heartbeat records: signing ours, checking theirs, and the newest one of every peer.

A record is worth the same whoever brought it (DHT, gossip, peers.json): it is believed because of its signature.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.discovery.identity import Identity, verify
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

PEERS_MAX: Final = 1024
VERIFIED_MAX: Final = 4096
CLOCK_SKEW_MAX_MS: Final = 60_000
"""How far in the future a record may have been signed. Records only order and expire things; a minute does no harm."""


def sign_record(identity: Identity, record: PeerRecord) -> bytes:
    """Our record as it travels."""
    body = encode_record(record)
    return encode_signed(SignedRecord(body, identity.public_key_der, identity.sign(record_text(body))))


def verify_record(data: bytes, run_id: RunId) -> PeerRecord:
    """The record in `data`. Raises WireError: form, signature, another peer's key, another run, protocol version."""
    signed = decode_signed(data)
    record = decode_record(signed.body)
    signer = verify(signed.public_key, record_text(signed.body), signed.signature)
    if signer != record.peer:
        raise WireError("bad_signature", f"record of {record.peer} is signed by {signer}")
    if record.run_id != run_id:
        raise WireError("wrong_run", f"record of run {record.run_id}")
    if record.protocol_major != PROTOCOL_MAJOR:
        raise WireError("wrong_protocol", f"record of protocol {record.protocol_major}")
    return record


class RecordBook:
    """Newest verified record of every peer, with the bytes to pass on."""

    def __init__(self, me: PeerId, run_id: RunId) -> None:
        self._me = me
        self._run_id = run_id
        self._newest: OrderedDict[PeerId, tuple[PeerRecord, bytes]] = OrderedDict()
        self._heard: OrderedDict[PeerId, None] = OrderedDict()
        """Who brought a record of its own: at most half of all that there is room for."""
        self._verified: OrderedDict[bytes, PeerRecord] = OrderedDict()

    def is_verified(self, data: bytes) -> bool:
        """Whether it was checked before, and costs next to nothing now."""
        return hashlib.sha256(data).digest() in self._verified

    def check(self, data: bytes, now_ms: int) -> PeerRecord:
        """The record in `data`, verified (remembered, so that a repeated record costs one hash). Raises WireError."""
        key = hashlib.sha256(data).digest()
        record = self._verified.get(key)
        if record is None:
            record = self._verified[key] = verify_record(data, self._run_id)
            if len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        if record.unix_ms > now_ms + CLOCK_SKEW_MAX_MS:
            ahead_s = (record.unix_ms - now_ms) / 1000
            raise WireError(
                "clock_skew", f"record of {record.peer} was signed {ahead_s:.0f} s in our future; check NTP"
            )
        return record

    def check_hint(self, data: bytes, expiration_s: float, now_ms: int) -> PeerId:
        """The DHT's question: whose record is that, and may it be kept until `expiration_s`? Raises WireError."""
        record = self.check(data, now_ms)
        if not expiration_s * 1000 <= record.unix_ms + record.ttl_ms + CLOCK_SKEW_MAX_MS:  # NaN is never later
            raise WireError("out_of_range", f"record of {record.peer} would outlive what its peer signed")
        return record.peer

    def add(self, data: bytes, now_ms: int, by: str = "") -> PeerRecord | None:
        """Keep the record if it is news; None if it is not newer than what we have. Raises WireError.

        `by`: who brought it. Peers that never brought a record of their own are the first to be forgotten."""
        record = self.check(data, now_ms)
        if by == record.peer:
            self._heard[record.peer] = None
            self._heard.move_to_end(record.peer)
            while len(self._heard) > PEERS_MAX // 2:
                self._heard.popitem(last=False)
        known = self._newest.get(record.peer)
        if known is not None and known[0].order >= record.order:
            return None
        self._newest[record.peer] = (record, data)
        self._newest.move_to_end(record.peer)
        while len(self._newest) > PEERS_MAX:
            del self._newest[self._least()]
        return record

    def _least(self) -> PeerId:
        return next(peer for peer in self._newest if peer != self._me and peer not in self._heard)

    def get(self, peer: PeerId) -> PeerRecord | None:
        entry = self._newest.get(peer)
        return entry[0] if entry else None

    def data(self, peer: PeerId) -> bytes:
        """The signed bytes of a peer's newest record; empty if we have none."""
        entry = self._newest.get(peer)
        return entry[1] if entry else b""

    def key_of(self, peer: PeerId) -> bytes:
        """DER of a peer's public key, as its record proves it; empty if we have no record of it."""
        data = self.data(peer)
        return decode_signed(data).public_key if data else b""

    def incarnation_of(self, peer: PeerId) -> int:
        """The number of its life, as its newest record has it; 0 if we have none."""
        record = self.get(peer)
        return record.incarnation if record is not None else 0

    def peers(self) -> list[PeerId]:
        """Everybody we have a record of, ourselves included, most recently renewed last."""
        return list(self._newest)

    def to_push(self, limit: int) -> tuple[bytes, ...]:
        """Our own record first, then the most recently renewed ones."""
        others = [peer for peer in reversed(self._newest) if peer != self._me]
        chosen = ([self._me] if self._me in self._newest else []) + others
        return tuple(self._newest[peer][1] for peer in chosen[:limit])
