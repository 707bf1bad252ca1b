"""What a simulated peer keeps over a crash, and the tiny stand-in for the outer worker's arithmetic."""

import hashlib
import struct
from dataclasses import dataclass, field

from dilocoxd.ids import Digest, RunId
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.commands import KeptPromise, Promise
from dilocoxd.wire.entry import SignedEntry, genesis_hash

RUN_ID = RunId("sim-0123456789abcdef")
GENESIS = genesis_hash(RUN_ID, bytes(32))
GENESIS_DIGEST = Digest(hashlib.sha256(b"state 0").digest())
Payload = dict[tuple[int, int], bytes]


@dataclass
class Stored:
    """One record of the log."""

    signed: SignedEntry
    payload: Payload


@dataclass
class Disk:
    """Durable state. `None` promise: nothing promised yet."""

    log: list[Stored] = field(default_factory=list)
    promise: Promise | None = None
    promise_payload: Payload = field(default_factory=dict)
    next_phase: int = 0
    incarnation: int = 0

    def chain(self) -> ChainView:
        """Replay: genesis, then every entry applied."""
        view = ChainView(RUN_ID, height=0, head=GENESIS, state_digest=GENESIS_DIGEST)  # type: ignore[arg-type]
        for stored in self.log:
            view = view.extended(stored.signed.entry, applied(view.state_digest, stored.payload))
        return view

    def kept(self) -> KeptPromise | None:
        if self.promise is None:
            return None
        held = self.promise.entry is not None and hashes(self.promise_payload) == self.promise.entry.result_hashes
        return KeptPromise(self.promise, results_held=held)


def sha(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).digest())


def hashes(payload: Payload) -> tuple[bytes, ...]:
    return tuple(sha(data) for _, data in sorted(payload.items()))


def applied(state_digest: Digest, payload: Payload) -> Digest:
    """Digest of the next state: depends on every byte that is applied and on everything before."""
    return sha(state_digest + b"".join(data for _, data in sorted(payload.items())))


def encode(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def weighted_mean(payloads: list[tuple[bytes, int]]) -> bytes:
    """Sum in the given order, then divide: floating point, so that another order gives other bits."""
    count = len(payloads[0][0]) // 8
    sums = [0.0] * count
    total = 0
    for data, tokens in payloads:
        total += tokens
        for index, value in enumerate(struct.unpack(f"<{count}d", data)):
            sums[index] += value * tokens
    return encode([value / total for value in sums])
