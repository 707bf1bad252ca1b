"""Contributions that come straight to a node: what its head is asked and told, and what fails. S12, I12.7, I12.8."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.exchange.facts import SegmentSent, TransferFailed
from dilocoxd.swarm.direct.routes import OtherNode
from dilocoxd.swarm.streams.bulk import NOT_YET, AlreadyHeld
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, PROTOCOL_FETCH
from dilocoxd.wire.local.buffers import INBOX
from dilocoxd.wire.local.inlets import (
    HELD,
    PayloadArrived,
    PayloadHeard,
    PayloadHere,
    PayloadPlace,
    PayloadRefused,
    PayloadsOver,
    PayloadsThere,
)
from dilocoxd.wire.messages import DataPorts, NodePort
from tests.unit.daemon.node.receiving import PLACE, SEGMENT, Receiving, receiving
from tests.unit.daemon.node.test_uploads import LENGTH, until


async def half_way(it: Receiving) -> asyncio.Event:
    """All bytes are at the node, but for those that the event lets go on."""
    is_free, sent = asyncio.Event(), 0

    async def throttle(_: PeerId, num_bytes: int) -> None:
        nonlocal sent
        sent += num_bytes
        if sent > LENGTH // 2:
            await is_free.wait()

    it.others.sender.throttle = throttle
    it.send()
    await until(lambda: it.receiver_bytes() > 0)
    return is_free


async def test_contribution_comes_to_the_node_and_its_head_is_told_before_its_sender(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.send()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.node.data() == it.payload
        assert it.head.arrived == [(it.b_id, it.header())] and it.head.heard_first == [True]
        assert not it.taker.bulk.counts, "nothing of it went by the head"
        shown = it.inlets.parts[0].shown()
        assert (shown.payloads, shown.bytes, shown.payloads_by_head) == (1, LENGTH, 0)
        assert [one.rpartition(":")[0] for one in shown.addresses] == ["127.0.0.1"]
        assert it.others.nodes_of(it.a_id) == (OtherNode(shown.addresses, SEGMENT, SEGMENT + 1, True, ""),)
        assert it.others.nodes_of(it.b_id) == ()
        assert it.transfers.take_counts(0).sent == LENGTH


async def test_result_goes_to_the_head_which_needs_it(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        result = dataclasses.replace(it.header(), kind=1, phase=0)
        assert it.others.way_to(it.a_id, result) is None
        assert it.others.way_to(it.a_id, dataclasses.replace(it.header(), segment=SEGMENT + 1)) is None
        with pytest.raises(WireError, match="contributions alone"):
            it.node.uplink.inlet.part_of(result)


async def test_port_that_is_not_reached_leaves_payloads_to_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        door, state = it.node.uplink.inlet._door, it.node.uplink.inlet.state()
        assert door is not None
        # The node goes on saying where it is: it looks once a second, and a closed socket has no port.
        monkeypatch.setattr(it.node.uplink.inlet, "state", lambda: state)
        door.listener.close()
        for link in door.listener.links(it.b_id):
            link.abort()
        it.send()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.taker.data() == it.payload and not it.head.arrived
        (node,) = it.others.nodes_of(it.a_id)
        assert not node.is_reached and node.reason
        it.inlets.came_here(it.header())
        assert it.inlets.parts[0].shown().payloads_by_head == 1


async def test_node_that_is_lost_in_mid_payload_leaves_it_to_the_head(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        is_free = await half_way(it)
        it.node.lose()
        before = it.node.data()
        is_free.set()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.taker.data() == it.payload and not it.head.arrived
        assert it.node.data() == before, "nothing is written for a life that is over"
        await until(lambda: not it.book.all())


async def test_head_that_does_not_hear_of_a_payload_gets_it_itself(tmp_path: Path) -> None:
    """Else its sender would count as delivered what nobody sums."""
    async with receiving(tmp_path) as it:
        await it.reached()
        hears = it.node.session.errands.on_inlet

        def lost_as_it_says_so(message: object) -> None:
            it.node.lose() if isinstance(message, PayloadArrived) else hears(message)

        it.node.session.errands.on_inlet = lost_as_it_says_so
        it.send()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.taker.data() == it.payload and not it.head.arrived


async def test_wrong_bytes_are_counted_and_no_receipt_is_given_for_them(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.send(sha256=bytes(32))
        assert isinstance(await it.outcome(), TransferFailed)
        assert not it.head.arrived and not it.taker.arrived, "the head was asked too, and looks as closely"
        await until(lambda: (it.b_id, "bad_hash") in it.head.rejected)
        assert it.inlets.parts[0].shown().rejected >= 1


async def test_refusal_at_a_node_is_no_word_of_its_site(tmp_path: Path) -> None:
    """A node may have been stolen, or be late: the head has the last word."""
    async with receiving(tmp_path) as it:
        await it.reached()
        it.head.refusal = WireError("not_wanted", "no such phase")
        it.send()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.taker.arrived and not it.receiver_bytes()
        it.taker.refusal = WireError("not_wanted", "no such phase")
        it.send()
        failed = await it.outcome()
        assert isinstance(failed, TransferFailed) and "no such phase" in failed.reason


async def test_what_the_head_has_gets_its_receipt_from_the_node(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.head.refusal = AlreadyHeld()
        it.send()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert [one.code for one in it.node.said if isinstance(one, PayloadRefused)] == [HELD] * 2
        assert not it.receiver_bytes() and not it.taker.bulk.counts


async def test_offer_before_its_proposal_waits_for_the_head_to_look_again(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.head.refusal = WireError(NOT_YET, "no proposal")
        it.send()
        await until(lambda: bool(it.inlets._early))
        it.head.refusal = None
        it.inlets.look_again()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.node.data() == it.payload and not it.taker.bulk.counts


async def test_place_that_the_head_takes_is_written_by_no_node_any_more(tmp_path: Path) -> None:
    """Two writers could change bytes behind the comparison with their hash: a false sum of an honest site."""
    async with receiving(tmp_path) as it:
        await it.reached()
        is_free = await half_way(it)
        it.inlets.take_here(PLACE)
        assert isinstance(it.node.said[-1], PayloadRefused)
        before = it.node.data()
        is_free.set()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.node.data() == before and it.taker.data() == it.payload
        with pytest.raises(WireError, match="another way"):
            await it.node.receipts.decide(it.b_id, it.header())
        it.inlets.over(0, 1)
        await it.node.receipts.decide(it.b_id, it.header())


async def test_copy_of_a_header_that_is_called_off_ends_nothing_of_the_first(tmp_path: Path) -> None:
    """Who offers what another site offers, and takes it elsewhere, had the node forget what comes from that one."""
    liar, elsewhere = PeerId("who copies"), dataclasses.replace(PLACE, offset=0)
    async with receiving(tmp_path) as it:
        await it.reached()
        is_free = await half_way(it)
        it.head.places[liar] = elsewhere
        await it.node.receipts.decide(liar, it.header())
        it.inlets.take_here(elsewhere)
        assert isinstance(it.node.said[-1], PayloadRefused)
        is_free.set()
        assert await it.outcome() == SegmentSent(it.a_id, it.key)
        assert it.head.arrived == [(it.b_id, it.header())] and it.node.data() == it.payload


async def test_place_that_changes_hands_is_moved_again(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.send()
        await it.outcome()
        assert it.inlets.parts[0].there == {PLACE}
        it.inlets.take_here(PLACE)
        assert it.node.said[-1] == PayloadHere(*dataclasses.astuple(PLACE)) and not it.inlets.parts[0].there


async def test_payload_of_an_attempt_that_is_over_is_written_no_more(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        is_free = await half_way(it)
        it.head.refusal = WireError("stale", "its attempt is over")
        it.inlets.over(0, 1)
        before = it.node.data()
        is_free.set()
        await it.outcome()
        assert it.node.data() == before and not it.inlets.parts[0].grants and not it.head.arrived


async def test_next_life_of_a_part_hears_first_what_its_node_has(tmp_path: Path) -> None:
    """Who stands for the part would else move what the head lacks over it, before the first request."""
    async with receiving(tmp_path) as it:
        await it.reached()
        it.send()
        await it.outcome()
        it.node.lose()
        it.node.said.clear()
        it.node.begin()
        assert it.node.said[0] == PayloadsThere(INBOX, (PLACE.offset, PLACE.length))
        assert it.node.data() == it.payload
        running = it.group.create_task(it.node.receipts.run())
        await it.reached()
        running.cancel()


@pytest.mark.parametrize("code", ["evicted", "not_admitted", "banned"])
async def test_site_that_the_head_does_not_let_in_is_let_in_by_no_node(tmp_path: Path, code: str) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.head.banned = WireError(code, "of this site")
        it.send()
        await it.outcome()
        assert not it.receiver_bytes() and not it.inlets.parts[0].grants
        it.head.callers = {}
        door = it.node.uplink.inlet._door
        assert door is not None
        await until(lambda: not door.listener.links(it.b_id) and not door.listener.believed())


async def test_node_lends_its_port_to_payloads_alone(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        assert await it.others._plane.take(it.way, PROTOCOL_BULK) is not None
        with pytest.raises(PeerError):
            stream = await it.others._plane.take(it.way, PROTOCOL_FETCH)
            assert stream is None, "it was refused in the handshake"
            raise PeerError("so it was")
        await until(lambda: (it.b_id, "bad_handshake") in it.head.rejected)


async def test_daemon_at_the_port_of_a_node_is_not_taken_for_one(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        it.inlets._site = dataclasses.replace(it.inlets._site, tell=lambda peer, ports: None)
        port = NodePort(SEGMENT, SEGMENT + 1, it.a.listener.port, ("127.0.0.1",))
        it.book.take(it.a_id, DataPorts((port,)))
        await until(lambda: "no node answers" in it.others._plane.view(it.way).reason)
        it.send()
        assert await it.outcome() == SegmentSent(it.a_id, it.key) and it.taker.arrived


async def test_node_whose_certificate_has_ended_gets_nothing(tmp_path: Path) -> None:
    async with receiving(tmp_path, life_s=-3600.0) as it:
        await until(lambda: "has ended" in it.others._plane.view(it.way).reason)
        it.send()
        assert await it.outcome() == SegmentSent(it.a_id, it.key) and it.taker.arrived


async def test_nothing_begins_on_a_connection_that_outlives_the_certificate_of_its_node(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        (route,) = it.others.routes().values()
        (link,) = route.resting()
        link.ends_at = 0.0
        await until(lambda: link.is_ended)


async def test_grants_and_questions_of_one_site_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.node.part_receipts.ASKED_OF_ONE_MAX", 2)
    async with receiving(tmp_path) as it:
        it.node.to_head = lambda message: None  # type: ignore[method-assign] - a head that is busy
        headers = [dataclasses.replace(it.header(), phase=number) for number in range(3)]
        asking = [it.group.create_task(it.node.receipts.decide(it.b_id, each)) for each in headers[:2]]
        await asyncio.sleep(0)
        with pytest.raises(WireError, match="more offers"):
            await it.node.receipts.decide(it.b_id, headers[2])
        for number in (1, 2):
            it.node.send(PayloadPlace(number, INBOX, PLACE.offset, PLACE.length))
        await asyncio.wait(asking)
        assert it.node.receipts.place(it.b_id, headers[0]).length == LENGTH
        it.node.send(PayloadsOver(0, 1))
        assert not any(one.exception() for one in asking)
        assert not it.node.receipts._asked and not it.node.receipts._of_one


async def test_place_outside_its_buffer_is_refused_by_the_node(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        it.node.to_head = lambda message: None  # type: ignore[method-assign]
        asking = asyncio.ensure_future(it.node.receipts.decide(it.b_id, it.header()))
        await asyncio.sleep(0)
        with pytest.raises(WireError, match="no such place"):
            it.node.send(PayloadPlace(1, INBOX, PLACE.offset + 1, LENGTH))
        it.node.send(PayloadRefused(1, "busy", ""))
        with pytest.raises(WireError, match="busy"):
            await asking


async def test_words_of_a_node_about_nothing_change_nothing(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        it.node.send(PayloadHeard(77, INBOX, 0, 1))
        it.node.send(PayloadRefused(78, "stale", ""))
        it.inlets._arrived(it.inlets.parts[0], 79)
        assert not it.head.arrived and not it.inlets.parts[0].there


async def test_site_that_was_started_anew_is_told_of_the_ports_again(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.book.keep(set())
        await until(lambda: not it.others.routes())
        it.inlets.met(it.b_id)
        await it.reached()


async def test_site_that_names_another_port_each_time_has_us_try_no_oftener(tmp_path: Path) -> None:
    """It could else have all others knock at somebody's door."""
    async with receiving(tmp_path) as it:
        it.inlets._site = dataclasses.replace(it.inlets._site, tell=lambda peer, ports: None)
        ports = [NodePort(SEGMENT, SEGMENT + 1, number, ("127.0.0.1",)) for number in (1, 2)]
        it.book.take(it.a_id, DataPorts((ports[0],)))
        plane = it.others._plane
        await until(lambda: plane.counts["tries_failed"] == 1)
        next_try = plane.routes()[it.way].next_try
        for named in ((), (ports[1],), (), (ports[0],)):
            it.book.take(it.a_id, DataPorts(named))
            it.others._look()
            assert it.others.routes().keys() == ({it.way} if named else set())
        assert plane.routes()[it.way].next_try == next_try


async def test_ports_of_a_site_out_of_touch_are_forgotten(tmp_path: Path) -> None:
    async with receiving(tmp_path) as it:
        await it.reached()
        it.others._site = dataclasses.replace(it.others._site, in_touch=set)
        await until(lambda: not it.others.routes() and not it.book.all())
