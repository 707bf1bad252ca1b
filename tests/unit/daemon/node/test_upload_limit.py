"""`network.upload_bytes_per_s_max` of a site whose nodes send payloads: what leaves it is counted, once."""

import asyncio
from pathlib import Path

from dilocoxd.daemon.round.transfers import ByNode
from dilocoxd.swarm.streams.throttle import TokenBucket
from dilocoxd.wire.frames import PIECE_BYTES
from dilocoxd.wire.local.buffers import OUTBOX
from tests.unit.daemon.node.test_uploads import AT, LENGTH, World, world


def taken(it: World, limit: TokenBucket) -> float:
    """Bytes that count against the limit now; it lets one through in a second."""
    assert it.head._bulk.throttle is not None
    return limit._free_at - asyncio.get_running_loop().time()


async def test_payload_that_the_node_does_not_send_is_not_paid_for(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        limit = TokenBucket(1.0, burst_bytes=2 * LENGTH)
        it.head._bulk.throttle, it.head._bulk.give_back = limit.take, limit.give_back
        await it.reached()
        it.node.buffers.punch(OUTBOX, 0, AT + LENGTH)
        assert await it.outcome(it.send()) is ByNode.NOT_BEGUN
        assert taken(it, limit) <= 0, "the head sends it, and takes its bytes then"
        it.node.buffers.write(OUTBOX, AT, it.node.payload)
        assert await it.outcome(it.send()) is ByNode.DONE
        assert LENGTH - PIECE_BYTES < taken(it, limit) <= LENGTH
        assert await it.outcome(it.send(is_new=False)) is ByNode.DONE
        assert taken(it, limit) <= LENGTH, "the site had all of it"
