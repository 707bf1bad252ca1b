"""Our DHT node: it stores records of this run's peers and nothing else, and sends nothing to who was evicted.

Source: protocol/05-discovery.md, rules D7 and D9.
"""

from collections.abc import Callable
from typing import Any

import msgpack

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.slim_import import import_slim

import_slim()

from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.validation import DHTRecord, RecordValidatorBase  # noqa: E402

HintCheck = Callable[[bytes, float], PeerId]
"""(signed record, DHT expiration) -> its peer; raises WireError. What it refuses is neither stored nor returned."""


class OnlyOurRecords(RecordValidatorBase):  # type: ignore[misc]  # hivemind is untyped
    """DHT storage rule: one key, subkey = peer id, value = a record that this very peer signed. All else is refused."""

    def __init__(self, key: str, check: HintCheck, count_bad: Callable[[str], None]) -> None:
        self._key_id = DHTID.generate(source=key).to_bytes()
        self._check = check
        self._count_bad = count_bad

    def validate(self, record: DHTRecord) -> bool:
        try:
            if record.key != self._key_id:
                raise WireError("malformed", "foreign DHT key")
            if len(record.subkey) > 128 or len(record.value) > 9 * 1024:
                raise WireError("too_large", f"DHT value of {len(record.value)} bytes")
            value, subkey = msgpack.unpackb(record.value), msgpack.unpackb(record.subkey)
            if not isinstance(value, bytes):
                raise WireError("malformed", "DHT value is not bytes")
            if self._check(value, record.expiration_time) != subkey:
                raise WireError("malformed", "DHT record of another peer")
        except (WireError, ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
            self._count_bad(error.code if isinstance(error, WireError) else "malformed")
            return False
        return True


async def create_dht(p2p: Any, validator: OnlyOurRecords, is_evicted: Callable[[PeerId], bool]) -> Any:
    """hivemind's `DHTNode` on this p2pd.

    hivemind stores a record with whoever is nearest to its key, and goes on so for as long as it is answered: who was
    evicted was sent the records of all members. A request that fails takes its peer out of the routing table.
    """
    dht = await DHTNode.create(p2p=p2p, strict=False, record_validator=validator)
    stub_of = dht.protocol.get_stub

    def get_stub(peer: Any) -> Any:
        if is_evicted(PeerId(peer.to_base58())):
            raise PeerError(f"{peer} was evicted")
        return stub_of(peer)

    dht.protocol.get_stub = get_stub
    return dht
