"""What the process that stands for a part on a node moves to it, where other sites brought some of it there (S12)."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

from dilocoxd.outerworker.away.moves import Moves, Stretch
from dilocoxd.outerworker.away.relay import Relay
from dilocoxd.wire.local import node
from dilocoxd.wire.local.buffers import INBOX
from dilocoxd.wire.local.inlets import PayloadHeard, PayloadHere, PayloadsOver, PayloadsThere
from dilocoxd.wire.local.outer_worker import Reduce, Share
from dilocoxd.wire.local.registry import LOCAL_MESSAGES
from dilocoxd.wire.local.worker import Attach, WorkerFailed
from tests.unit.outerworker.test_away_moves import plans


class Ends:
    """Daemon and node of a relay: what each hears of it."""

    def __init__(self, wanted: Any) -> None:
        self.buffers = {each.name: mmap.mmap(-1, each.size) for each in wanted}
        self.descriptors: dict[str, int] = {}
        self.said: list[Any] = []

    def send(self, message: Any) -> None:
        self.said.append(message)

    def receive(self) -> Any:
        raise AssertionError("the test says it")


def test_what_came_straight_to_the_node_is_not_moved_there(tmp_path: Path) -> None:
    plan = plans("plain")[1]
    ends: Any = Ends(plan.described().buffers)
    link: Any = Ends(())
    relay, segment = Relay(ends, link, plan, tmp_path), plan.segments[0].index
    relay._hear(Attach((), ()))
    request = Reduce(1, 0, segment, (Share(-1, 1), Share(0, 1), Share(1, 1)), 0)
    first, second = (each for each in Moves(plan).before(request) if each.name == INBOX)

    def moved() -> list[Stretch]:
        relay._hear(request)
        found = [each for each in link.said if isinstance(each, node.WriteBuffer)]
        link.said.clear()
        return [Stretch(each.name, each.offset, each.offset + len(each.data)) for each in found]

    def place(of: Stretch) -> tuple[str, int, int]:
        return of.name, of.first, of.stop - of.first

    assert moved() == [first, second]
    relay._hear(PayloadHeard(7, *place(first)))
    assert LOCAL_MESSAGES.decode(link.said[-1].body) == PayloadHeard(7, *place(first)), "the node hears it too"
    assert moved() == [second]
    relay._hear(PayloadsOver(1, 0))
    assert moved() == [second], "what is there outlives its attempt"
    relay._hear(PayloadHere(*place(first)))
    assert not link.said, "that is none of the node's business"
    assert moved() == [first, second]
    relay._hear(PayloadsThere(INBOX, (*place(second)[1:], *place(first)[1:])))
    assert moved() == []


def test_disk_that_is_full_at_the_node_is_told_as_the_node_s(tmp_path: Path) -> None:
    """Its path means nothing on the head, or another disk."""
    ends: Any = Ends(plans("plain")[1].described().buffers)
    link: Any = Ends(())
    relay = Relay(ends, link, plans("plain")[1], tmp_path)
    full = WorkerFailed(3, "disk_full", "preparing a snapshot: No space left on device at /srv/node")
    relay._take(node.FromPart(LOCAL_MESSAGES.encode(full)))
    assert ends.said == [replace(full, detail=f"on the node of outer part 1: {full.detail}")]
    refused = WorkerFailed(4, "bad_payload", "7")
    relay._take(node.FromPart(LOCAL_MESSAGES.encode(refused)))
    assert ends.said[1:] == [refused], "some details are read by the daemon"
