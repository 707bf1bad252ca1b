"""As the owner of segments returns -20 times the mean in one that it owns, and the right sum in the others.

It says that it has the fastest line by far, which nobody can check, and so owns the most: of two segments four sites of
one speed own none or one, by the order of their ids, for as long as they all take part (X1). Owners change with the
group, so the segment of the first round may be another's for the rest of the run: a segment that is reduced twice with
no lie between takes its place.

With workers: codec fp32, whose payloads are numbers that can be multiplied here. Without: bytes that differ.
"""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from dilocoxd.daemon.peers import membership
from dilocoxd.daemon.site.site import LocalSite
from dilocoxd.machines.round.inputs import PeersChanged
from dilocoxd.wire.local.buffers import RESULT
from dilocoxd.wire.local.outer_worker import SegmentReduced
from tests.harness.synthetic.fake_site import LENGTHS, FakeSite

FACTOR = np.float32(-20.0)
CLAIMED_BYTES_PER_S = 1 << 40


def _lie(site: Any, done: SegmentReduced, lengths: tuple[int, ...], record_bytes: int | None) -> SegmentReduced:
    first, length = sum(lengths[: done.segment]), lengths[done.segment]
    data = bytearray(site.buffers.read(RESULT, first, length))
    if record_bytes is None:
        data[0] ^= 0xFF
    else:
        body = np.frombuffer(memoryview(data)[: length - record_bytes], dtype=np.float32)
        body *= FACTOR
    site.buffers.write(RESULT, first, data)
    return SegmentReduced(0, done.pass_index, done.segment, hashlib.sha256(data).digest(), done.seconds)


def apply() -> None:
    """Every round, in one segment."""
    honest_local, honest_fake = LocalSite.reduce, FakeSite.reduce
    chosen: set[int] = set()
    honest_since: set[int] = set()

    def is_chosen(segment: int) -> bool:
        if not chosen or segment in honest_since:
            chosen.clear()
            chosen.add(segment)
        if segment in chosen:
            honest_since.clear()
            return True
        honest_since.add(segment)
        return False

    async def reduce(self: LocalSite, *arguments: Any, **named: Any) -> SegmentReduced:
        done = await honest_local(self, *arguments, **named)
        layout = await self.ready()
        lengths = max(layout.payload_bytes.values(), key=lambda table: sum(map(sum, table)))[0]
        return _lie(self, done, lengths, layout.record_bytes) if is_chosen(done.segment) else done

    async def fake_reduce(self: FakeSite, *arguments: Any, **named: Any) -> SegmentReduced:
        done = await honest_fake(self, *arguments, **named)
        return _lie(self, done, LENGTHS, None) if is_chosen(done.segment) else done

    def claim(*arguments: Any, **named: Any) -> PeersChanged:
        return replace(PeersChanged(*arguments, **named), bandwidth=CLAIMED_BYTES_PER_S)

    membership.PeersChanged = claim  # type: ignore[attr-defined,misc,assignment]
    LocalSite.reduce = reduce  # type: ignore[method-assign]
    FakeSite.reduce = fake_reduce  # type: ignore[method-assign]
