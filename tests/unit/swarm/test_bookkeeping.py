"""The small parts of the network: guard, pieces, peers.json, upload limit."""

import asyncio
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery.peers_file import PeersFile
from dilocoxd.swarm.streams import throttle
from dilocoxd.swarm.streams.guard import BAN_S, PEERS_TRACKED_MAX, STRIKES_MAX, PeerGuard
from dilocoxd.swarm.streams.pieces import PieceSet, Region
from dilocoxd.swarm.streams.throttle import SERVING_PAUSE_MAX_S, SendingSpeeds, ServingLimit, TokenBucket
from dilocoxd.wire.frames import PIECE_BYTES

PEER = PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
OTHER = PeerId("QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC")
ENTRY = {"peer": PEER, "addresses": [], "seen_unix_ms": 1, "record": ""}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_ban_comes_after_enough_bad_input_and_ends() -> None:
    clock = Clock()
    guard = PeerGuard(clock)
    for _ in range(STRIKES_MAX):
        guard.admit(PEER)
        guard.count(PEER, "bad_hash")
    with pytest.raises(WireError, match="banned"):
        guard.admit(PEER)
    clock.now += BAN_S + 1
    guard.admit(PEER)
    assert guard.bad_input() == {PEER: {"bad_hash": STRIKES_MAX}}


def test_crashes_and_slow_mistakes_never_ban() -> None:
    clock = Clock()
    guard = PeerGuard(clock)
    for _ in range(10 * STRIKES_MAX):
        guard.count(PEER, "truncated")
    for _ in range(10 * STRIKES_MAX):
        clock.now += BAN_S / (STRIKES_MAX - 2)
        guard.count(PEER, "malformed")
    guard.admit(PEER)


def test_memory_of_the_guard_is_bounded_and_a_ban_outlasts_new_ids() -> None:
    guard = PeerGuard(Clock())
    for _ in range(STRIKES_MAX):
        guard.count(PEER, "bad_hash")
    for number in range(3 * PEERS_TRACKED_MAX):
        guard.count(f"peer{number}", "malformed")
    assert len(guard._peers) == PEERS_TRACKED_MAX
    with pytest.raises(WireError, match="banned"):
        guard.admit(PEER)


@given(st.integers(0, 300), st.data())
def test_bitmap_of_pieces_round_trips(num_pieces: int, data: st.DataObject) -> None:
    present = data.draw(st.sets(st.integers(0, num_pieces - 1))) if num_pieces else set()
    pieces = PieceSet(num_pieces)
    for index in present:
        pieces.add(index)
        pieces.add(index)
    again = PieceSet.from_bytes(pieces.to_bytes(), num_pieces)
    assert set(again.missing()) == set(range(num_pieces)) - present
    assert again.num_present == len(present)
    assert again.is_complete == (len(present) == num_pieces)
    assert pieces.filled().missing() == []


@pytest.mark.parametrize(("data", "num_pieces"), [(b"", 1), (b"\0\0", 8), (b"\xff", 7), (b"\0", 0)])
def test_bitmap_that_does_not_fit_is_refused(data: bytes, num_pieces: int) -> None:
    with pytest.raises(WireError):
        PieceSet.from_bytes(data, num_pieces)


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_region_keeps_to_its_bounds(tmp_path: Path, is_on_disk: bool) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        os.truncate(file.fileno(), 100 + PIECE_BYTES + 10)
        region = Region(file.fileno(), 100, PIECE_BYTES + 3, is_on_disk)
        assert region.num_pieces == 2
        await region.write_piece(1, memoryview(b"abc"))
        assert await region.read_piece(1) == b"abc"
        assert os.pread(file.fileno(), 10, 100 + PIECE_BYTES) == b"abc" + bytes(7)
        for index, data in [(2, b""), (-1, b""), (1, b"abcd"), (0, b"short")]:
            with pytest.raises(WireError, match="out_of_range"):
                await region.write_piece(index, memoryview(data))
        with pytest.raises(StoreError):
            await Region(file.fileno(), 200, PIECE_BYTES, is_on_disk).read_piece(0)
        with pytest.raises(StoreError):
            await Region(file.fileno(), 200, PIECE_BYTES, is_on_disk).sha256()


async def test_full_disk_is_a_store_error() -> None:
    with Path("/dev/full").open("r+b", buffering=0) as full, pytest.raises(StoreError, match="No space left"):
        await Region(full.fileno(), 0, 3, True).write_piece(0, memoryview(b"abc"))


def test_two_who_save_the_peers_at_once_do_not_take_each_others_file(tmp_path: Path) -> None:
    file = PeersFile(tmp_path / "peers.json", incarnation=3)
    with ThreadPoolExecutor(4) as pool:
        for saved in [pool.submit(file.save) for _ in range(100)]:
            saved.result()
    assert json.loads(file.path.read_text())["incarnation"] == 3


def test_peers_file_round_trips_and_keeps_the_last_working_address_first(tmp_path: Path) -> None:
    file = PeersFile(tmp_path / "peers.json", incarnation=3)
    file.remember(PEER, ("/ip4/10.0.0.1/tcp/1",), 5, b"record")
    file.remember(PEER, ("/ip4/10.0.0.2/tcp/1",), 4)
    file.save()
    again = PeersFile(tmp_path / "peers.json")
    assert again.load() == ""
    assert again.incarnation == 3
    assert again.peers[PEER].addresses == ("/ip4/10.0.0.2/tcp/1", "/ip4/10.0.0.1/tcp/1")
    assert (again.peers[PEER].seen_unix_ms, again.peers[PEER].record) == (5, b"record")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"incarnation": -1, "peers": []}', '{"incarnation": 1}', "[" * 100_000,
     json.dumps({"incarnation": 1, "peers": [{**ENTRY, "addresses": ["/unix/x"]}]}),
     json.dumps({"incarnation": 1, "peers": [{**ENTRY, "record": "?"}]})],
    ids=range(8),
)  # fmt: skip
def test_damaged_peers_file_is_set_aside_and_the_daemon_goes_on(tmp_path: Path, content: str) -> None:
    path = tmp_path / "peers.json"
    path.write_text(content)
    assert PeersFile(path).load() != ""
    assert not path.exists()
    assert (tmp_path / "peers.json.bad").read_text() == content


async def test_upload_limit_holds_on_average_and_lets_bursts_through() -> None:
    bucket = TokenBucket(1_000_000, burst_bytes=100_000)
    clock = asyncio.get_running_loop().time
    started = clock()
    await bucket.take(PEER, 100_000)
    await bucket.take(PEER, 200_000)
    assert clock() - started >= 0.19
    await TokenBucket(0).take(PEER, 10**12)


async def test_who_does_not_send_what_he_took_from_the_upload_limit_leaves_it_to_others() -> None:
    bucket = TokenBucket(1.0, burst_bytes=100)  # what is not there within the burst is not there in this test
    await bucket.take(PEER, 100)
    waiting = asyncio.create_task(bucket.take(PEER, 1000))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    bucket.give_back(60)
    async with asyncio.timeout(30):
        await bucket.take(PEER, 60)


async def order_of(bucket: TokenBucket, *asked: tuple[PeerId, int]) -> list[PeerId]:
    """Receivers in the order in which they were let go, of those that ask in this order at one moment, however long
    the machine takes for it."""
    order: list[PeerId] = []
    loop = asyncio.get_running_loop()
    now = [loop.time()]

    async def wait(peer: PeerId, num_bytes: int) -> None:
        await bucket.take(peer, num_bytes)
        order.append(peer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "time", lambda: now[0])
        async with asyncio.TaskGroup() as group:
            for peer, num_bytes in asked:
                group.create_task(wait(peer, num_bytes))
            await asyncio.sleep(0)
            assert not order, "all have asked before time goes on"
            while len(order) < len(asked):
                now[0] += 0.001
                await asyncio.sleep(0)
    return order


async def test_receiver_with_many_connections_leaves_the_others_their_part_of_the_upload_limit() -> None:
    bucket = TokenBucket(10_000_000, burst_bytes=1, turn_bytes=10_000)
    many = [(PEER, 10_000)] * 16
    assert await order_of(bucket, *many, (OTHER, 10_000), (OTHER, 10_000)) == [PEER, OTHER, PEER, OTHER, *[PEER] * 14]


async def test_upload_limit_is_shared_by_bytes_not_by_pieces() -> None:
    bucket = TokenBucket(10_000_000, burst_bytes=1, turn_bytes=20_000)
    order = await order_of(bucket, *[(PEER, 20_000)] * 3, *[(OTHER, 5_000)] * 8)
    assert order == [PEER, *[OTHER] * 4, PEER, *[OTHER] * 4, PEER]


async def test_whole_payload_that_a_node_sends_waits_for_as_many_turns_as_it_has_pieces() -> None:
    bucket = TokenBucket(10_000_000, burst_bytes=1, turn_bytes=10_000)
    order = await order_of(bucket, (OTHER, 10_000), (PEER, 40_000), *[(OTHER, 10_000)] * 5)
    assert order == [OTHER, OTHER, OTHER, OTHER, PEER, OTHER, OTHER]


async def test_who_asks_anew_after_each_piece_has_its_turns_beside_who_waits_with_many() -> None:
    bucket, order = TokenBucket(1.0, burst_bytes=10_001, turn_bytes=10_000), list[PeerId]()

    async def lane(peer: PeerId) -> None:
        for _ in range(8):
            await bucket.take(peer, 10_000)
            order.append(peer)

    async with asyncio.TaskGroup() as group:
        for peer in (PEER, PEER, PEER, OTHER):
            group.create_task(lane(peer))
        for _ in range(32):
            for _ in range(5):  # who was let go asks again
                await asyncio.sleep(0)
            bucket.give_back(10_000)
    assert order[:16].count(OTHER) >= 7, "a turn of each, in turn"


async def test_payload_that_a_node_did_not_send_is_no_burst_of_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others waited for it all the time; what they may send at once is what they always may."""
    loop = asyncio.get_running_loop()
    now, bucket = [loop.time()], TokenBucket(1.0, burst_bytes=100)
    monkeypatch.setattr(loop, "time", lambda: now[0])
    node = asyncio.create_task(bucket.take(PEER, 1000))
    others = [asyncio.create_task(bucket.take(OTHER, 100)) for _ in range(9)]
    await asyncio.sleep(0)
    now[0] += 900
    await node
    bucket.give_back(1000)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sum(task.done() for task in others) == 1
    now[0] += 100
    await others[1]
    assert not others[2].done()
    for task in others[2:]:
        task.cancel()


async def test_who_leaves_the_line_of_the_upload_limit_holds_up_nobody() -> None:
    bucket = TokenBucket(1.0, burst_bytes=100)
    gone = asyncio.create_task(bucket.take(PEER, 10_000))
    behind = asyncio.create_task(bucket.take(PEER, 100))
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(30):
        await behind
    assert not bucket._next()


async def test_serving_makes_way_while_an_exchange_sends_and_shows_progress() -> None:
    clock = asyncio.get_running_loop().time
    speed: float | None = None
    limit = ServingLimit(0, lambda: speed)
    with pytest.raises(StopIteration):  # it waits for nothing
        limit.take(PEER, 10_000_000).send(None)
    speed = 1_000_000.0
    started = clock()
    await limit.take(PEER, 40_000)
    assert clock() - started >= 0.4, "a tenth of the speed of the exchange"
    speed = 0.0
    started = clock()
    async with asyncio.timeout(30):
        await limit.take(PEER, 10_000_000)
    assert clock() - started >= SERVING_PAUSE_MAX_S


async def test_serving_goes_on_at_once_when_the_exchange_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "SERVING_PAUSE_MAX_S", 10_000.0)
    ends = asyncio.Event()
    limit = ServingLimit(0, lambda: None if ends.is_set() else 1.0)
    asyncio.get_running_loop().call_later(0.1, ends.set)
    async with asyncio.timeout(60):
        await limit.take(PEER, 10_000)


async def ended(speeds: SendingSpeeds, clock: Clock, *ends: tuple[float, int | None]) -> float:
    """The speed after payloads that begin together and end at these times with so many bytes; 0: not known."""
    started = clock.now
    for _ in ends:
        speeds.begin(PEER)
    for at_s, num_bytes in ends:
        clock.now = started + at_s
        speeds.end(PEER, num_bytes)
    return speeds.bytes_per_s.get(PEER, 0.0)


MB = 1_000_000


@pytest.mark.parametrize(
    ("ends", "least", "most"),
    [
        (((2.0, 4 * MB),), 2 * MB, 2 * MB),
        (((0.1, MB), (0.2, MB)), 9 * MB, 11 * MB),
        (((2.0, 4 * MB), (2.001, 4 * MB)), 2 * MB, 4 * MB),
        (((2.0, 4 * MB), (4.0, 4 * MB), (4.001, 4 * MB)), 2 * MB, 4 * MB),
        (((2.0, None), (2.001, 4 * MB)), 0, 4 * MB),
    ],
    ids=["one", "short ones", "just behind the first", "just behind others", "behind one that was refused"],
)
async def test_payload_that_ends_just_behind_another_is_not_taken_for_a_fast_one(
    ends: tuple[tuple[float, int | None], ...], least: float, most: float
) -> None:
    clock = Clock()
    assert least <= await ended(SendingSpeeds(clock), clock, *ends) <= most
