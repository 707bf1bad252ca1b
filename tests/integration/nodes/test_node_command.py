"""`dilocoxd node` against a head's door: who has another key is told so and let nowhere; a stranger costs nothing."""

import asyncio
import contextlib
import dataclasses
import json
import resource
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dilocoxd import __version__
from dilocoxd.config.footprint.nodes import NO_NEEDS, NodeNeeds
from dilocoxd.daemon.head.door import GREETED_MAX, HELLO_BYTES_MAX, NodeDoor
from dilocoxd.daemon.head.last_nodes import LastNodes
from dilocoxd.daemon.head.waiting import Held, NodeProcess, WaitingNode
from dilocoxd.daemon.process.open_files import allowable_open_files
from dilocoxd.daemon.workers.forked import PlaceLost
from dilocoxd.errors import ConfigError, WorkerError
from dilocoxd.ipc.sealed import FRONT_BYTES, LENGTH, Seal, greeting, new_salt, salt_of
from dilocoxd.store.admission import write_secret
from dilocoxd.wire.local.node import PART_PLACE, STAGE_PLACE, NodeHello
from tests.harness.running.run_directories import free_port
from tests.harness.running.warm import WARM_VARIABLE
from tests.integration.nodes.node_process import node_process

pytestmark = pytest.mark.processes
KEY, OTHER_KEY = bytes(range(32)), bytes(32)
PART = "0123456789abcdef.part1of2"
EMPTY = NodeHello(__version__, "", "", "gpu-3", home="a folder", process="earlier")
"""A place without a past, of a node that runs."""
HOLDING = dataclasses.replace(EMPTY, served=PART, incarnation="this start-1", ran_by="earlier")
PROCESS = NodeProcess(("127.0.0.1", EMPTY.name, EMPTY.home), EMPTY.process)
WAIT_S, FEW_FILES = 180.0, 512
LONG_S = 1000.0
"""Longer than a test: limits that are not what is asked, and that a machine which stands still would reach."""


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node says is looked at to the letter: it is the program that operators start."""
    monkeypatch.delenv(WARM_VARIABLE, raising=False)


@contextlib.asynccontextmanager
async def open_door(grace_s: float = LONG_S, needs: NodeNeeds = NO_NEEDS) -> AsyncIterator[NodeDoor]:
    door = NodeDoor("127.0.0.1", free_port(), KEY, "this start", grace_s, needs)
    door.listen()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(door.serve(), name="door")
        async with asyncio.timeout(WAIT_S):
            yield door
        serving.cancel()


def come(door: NodeDoor, hello: NodeHello, key: bytes = KEY) -> socket.socket:
    """A node that says this; blocking, in a thread."""
    sock, salt = socket.create_connection(door.address, WAIT_S), new_salt()
    sock.sendall(greeting(salt))
    front = sock.recv(FRONT_BYTES, socket.MSG_WAITALL)
    sock.sendall(Seal(key, salt_of(front) + salt, is_head=False).frame(hello))
    return sock


def nothing() -> None:
    """Nobody is told."""


async def test_node_with_another_key_ends_with_one_sentence(tmp_path: Path) -> None:
    async with open_door() as door:
        write_secret(tmp_path / "node.key", OTHER_KEY.hex())
        with node_process(door.address[1], tmp_path / "node.key", tmp_path / "node") as node:
            code = await asyncio.to_thread(node.process.wait, WAIT_S)
        assert code == ConfigError.exit_code
        (sentence,) = node.said().splitlines()
        assert sentence.startswith("dilocoxd: ") and "has another node key; copy the file" in sentence


async def test_node_with_too_little_memory_ends_with_one_sentence_and_the_head_says_so(tmp_path: Path) -> None:
    """It was let in, and the kernel ended its parts in the first round."""
    more_than_any = 1 << 62
    async with open_door(needs=NodeNeeds(num_parts=2, part_bytes=more_than_any)) as door:
        write_secret(tmp_path / "node.key", KEY.hex())
        with node_process(door.address[1], tmp_path / "node.key", tmp_path / "node") as node:
            code = await asyncio.to_thread(node.process.wait, WAIT_S)
        assert code == ConfigError.exit_code
        (sentence,) = node.said().splitlines()
        assert sentence.startswith(f"dilocoxd: cannot work for 127.0.0.1:{door.address[1]}: the node ")
        assert f"offers room for 1 outer part, which hold at least {more_than_any / (1 << 30):.2f} GiB" in sentence
        assert sentence.endswith(door.refused.why) and door.refused.count == 1 and not door.num_waiting


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("5a" * 31, 0o600, "has 31 bytes instead of 32"),
        ("no key", 0o600, "cannot be read"),
        ("5a" * 32, 0o644, "chmod 600"),
    ],
)
async def test_key_that_is_none_is_told(tmp_path: Path, text: str, mode: int, told: str) -> None:
    key = tmp_path / "node.key"
    key.write_text(text)
    key.chmod(mode)
    with node_process(free_port(), key, tmp_path / "node") as node:
        assert await asyncio.to_thread(node.process.wait, WAIT_S) == ConfigError.exit_code
    (sentence,) = node.said().splitlines()
    assert told in sentence


async def test_node_may_have_as_many_files_open_as_a_daemon(tmp_path: Path) -> None:
    """Its data port takes more connections than a shell's usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    write_secret(tmp_path / "node.key", KEY.hex())
    async with open_door() as door:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
        try:
            wanted = allowable_open_files()
            with node_process(door.address[1], tmp_path / "node.key", tmp_path / "node") as node:
                await until_waiting(door, 1)
                assert resource.prlimit(node.pid, resource.RLIMIT_NOFILE)[0] == wanted
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("note", [b"\xff\n", b"\0" * 64, b"part " * 200, b"", None])
async def test_damaged_note_of_what_ran_there_is_none(tmp_path: Path, note: bytes | None) -> None:
    write_secret(tmp_path / "node.key", KEY.hex())
    (tmp_path / "node").mkdir()
    if note is None:
        (tmp_path / "node" / "slot-0").mkdir()
    else:
        (tmp_path / "node" / "slot-0").write_bytes(note)
    async with open_door() as door:
        with node_process(door.address[1], tmp_path / "node.key", tmp_path / "node"):
            await until_waiting(door, 1)
            found = await door.take(PART, nothing, patience_s=0.0)
            found.sock.close()
            assert not found.hello.served


async def test_strangers_are_counted_and_get_no_part() -> None:
    async with open_door() as door:
        hello = NodeHello(__version__, "", "")
        with await asyncio.to_thread(come, door, hello, OTHER_KEY) as wrong_key:
            assert await asyncio.to_thread(_read_to_end, wrong_key)
        with await asyncio.to_thread(come, door, NodeHello("0.0.0", "", "")) as old:
            assert await asyncio.to_thread(_read_to_end, old)
        assert (door.refused.count, door.refused.last_from) == (2, "127.0.0.1")
        with socket.create_connection(door.address) as other_program:
            other_program.sendall(b"GET / HTTP/1.1\r\nHost: head.example\r\nUser-Agent: something\r\n\r\n")
            await asyncio.to_thread(_read_to_end, other_program)
        assert door.refused.count == 3
        for name, who in (("gpu-3", "gpu-3 (127.0.0.1)"), ("-not-a-name-", "127.0.0.1")):
            with await asyncio.to_thread(come, door, dataclasses.replace(hello, name=name)):
                found = await door.take(PART, nothing)
                found.sock.close()
                assert found.who == who, "a name is shown only if it is one"


async def test_silent_strangers_keep_no_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.head.door.GREET_TIMEOUT_S", LONG_S)  # nobody goes because of that
    async with open_door() as door:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(door.address)) for _ in range(GREETED_MAX)]
            with await asyncio.to_thread(come, door, NodeHello(__version__, "", "")):
                await until_waiting(door, 1)
            assert await asyncio.to_thread(silent[0].recv, 1) == b"", "the oldest has made room"
            await until(lambda: door.refused.count == 1)


async def test_crowd_from_one_address_makes_room_at_its_own_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.head.door.GREET_TIMEOUT_S", LONG_S)
    async with open_door() as door:
        salt = new_salt()
        with contextlib.ExitStack() as stack:
            slow = stack.enter_context(socket.create_connection(door.address, WAIT_S, ("127.0.0.2", 0)))
            slow.sendall(greeting(salt))
            front = await asyncio.to_thread(slow.recv, FRONT_BYTES, socket.MSG_WAITALL)
            for _ in range(2 * GREETED_MAX):
                stack.enter_context(await asyncio.to_thread(socket.create_connection, door.address, WAIT_S))
            await until(lambda: door.refused.count == GREETED_MAX + 1)
            slow.sendall(Seal(KEY, salt_of(front) + salt, is_head=False).frame(NodeHello(__version__, "", "")))
            await until_waiting(door, 1)


async def test_stranger_cannot_make_the_head_hold_a_large_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.head.door.GREET_TIMEOUT_S", LONG_S)
    async with open_door() as door:
        with socket.create_connection(door.address) as stranger:
            stranger.sendall(greeting(new_salt()) + LENGTH.pack(HELLO_BYTES_MAX + 1))
            await asyncio.to_thread(_read_to_end, stranger)
        assert door.refused.count == 1


async def test_connections_that_ended_take_no_room() -> None:
    async with open_door() as door:
        for _ in range(3):
            (await asyncio.to_thread(come, door, NodeHello(__version__, "", ""))).close()
            await asyncio.sleep(0.05)
        with await asyncio.to_thread(come, door, NodeHello(__version__, "", "")):
            await until_waiting(door, 1)


async def test_part_goes_where_its_files_are_and_only_where_its_buffers_are() -> None:
    async with open_door() as door:
        served, holding = NodeHello(__version__, PART, ""), NodeHello(__version__, PART, "this start-1")
        anew = dataclasses.replace(served, process="later", ran_by=PROCESS.start)
        fresh = NodeHello(__version__, "", "")
        with await asyncio.to_thread(come, door, fresh), await asyncio.to_thread(come, door, served):
            await until_waiting(door, 2)
            assert (await taken(door)).hello == served
            with await asyncio.to_thread(come, door, holding):
                await until_waiting(door, 2)
                assert (await taken(door, holds="this start-1")).hello == holding
            with await asyncio.to_thread(come, door, anew):
                await until_waiting(door, 2)
                with pytest.raises(PlaceLost, match=r"its node 127\.0\.0\.1 was started anew"):
                    await taken(door, holds="this start-1")


async def test_part_waits_on_for_its_buffers_unless_another_node_has_room() -> None:
    async with open_door(grace_s=0.5) as door:
        holds = door.new_incarnation()
        choice = asyncio.create_task(taken(door, holds=holds))
        await asyncio.sleep(1.5)
        assert not choice.done(), "a start anew would find no place either"
        with await asyncio.to_thread(come, door, NodeHello(__version__, PART, holds)):
            assert (await choice).hello.incarnation == holds, "it was only cut off"
        with await asyncio.to_thread(come, door, NodeHello(__version__, "", "")):
            lost = asyncio.create_task(taken(door, holds=holds))
            assert isinstance((await asyncio.gather(lost, return_exceptions=True))[0], PlaceLost)


@pytest.mark.parametrize("kind", [PART_PLACE, STAGE_PLACE])
async def test_node_that_lost_its_folder_is_known_by_where_it_runs(kind: str) -> None:
    async with open_door() as door:
        with await asyncio.to_thread(come, door, dataclasses.replace(EMPTY, kind=kind, process="later")):
            await until_waiting(door, 1)
            with pytest.raises(PlaceLost, match=r"its node gpu-3 \(127\.0\.0\.1\) was started anew"):
                await taken(door, holds="this start-1")


async def test_other_nodes_of_a_machine_are_no_news_of_one_that_is_missed() -> None:
    others = [
        EMPTY,
        dataclasses.replace(EMPTY, process="later", home="another folder"),
        dataclasses.replace(EMPTY, process="later", name="gpu-4"),
        NodeHello(__version__, "", "", process="says nothing of its folder"),
    ]
    async with open_door() as door, contextlib.AsyncExitStack() as stack:
        for each in others:
            stack.enter_context(await asyncio.to_thread(come, door, each))
        await until_waiting(door, len(others))
        has_looked = asyncio.Event()
        choice = asyncio.create_task(taken(door, holds="this start-1", waits=has_looked.set))
        await has_looked.wait()
        with await asyncio.to_thread(come, door, HOLDING):
            assert (await choice).hello == HOLDING


async def test_node_that_ran_the_part_before_is_no_news_of_the_one_that_has_it_now() -> None:
    """It was lost, another one took the part, and now it is there again, as a spare: what it ran is on its disk."""
    spare = NodeHello(__version__, PART, "", "gpu-4", home="a folder", process="gpu-4 again", ran_by="gpu-4")
    async with open_door() as door:
        with await asyncio.to_thread(come, door, spare):
            await until_waiting(door, 1)
            has_looked = asyncio.Event()
            choice = asyncio.create_task(taken(door, holds="this start-1", waits=has_looked.set))
            await until(lambda: has_looked.is_set() or choice.done())
            with await asyncio.to_thread(come, door, HOLDING):
                assert (await choice).hello == HOLDING, "its connection had ended, and no more"


async def test_of_two_nodes_that_have_files_of_a_part_the_one_that_ran_it_last_is_chosen() -> None:
    old = NodeHello(__version__, PART, "", "gpu-4", home="a folder", process="gpu-4 again", ran_by="gpu-4")
    last = NodeHello(__version__, PART, "", "gpu-3", home="a folder", process="later", ran_by="earlier")
    async with open_door() as door:
        with await asyncio.to_thread(come, door, old):
            await until_waiting(door, 1)
            choice = asyncio.create_task(door.take(PART, nothing, patience_s=LONG_S, last=PROCESS))
            await asyncio.sleep(0.3)
            assert not choice.done(), "the other one may be on its way"
            with await asyncio.to_thread(come, door, last):
                found = await choice
                found.sock.close()
                assert found.hello == last
            found = await door.take(PART, nothing, patience_s=0.0, last=PROCESS)
            found.sock.close()
            assert found.hello == old, "old files are better than none"


@pytest.mark.parametrize("files", [{}, {"served": PART, "ran_by": "earlier", "name": "gpu-4"}])
async def test_node_that_was_there_beside_another_one_has_not_followed_it(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines behind one address, with one name and one folder, as copies of one image are; or of that folder."""
    monkeypatch.setattr("dilocoxd.daemon.head.door.FOLLOWS_S", 0.2)
    twin = dataclasses.replace(EMPTY, process="of the twin", **files)
    async with open_door() as door:
        (await asyncio.to_thread(come, door, twin)).close()
        await asyncio.sleep(0.5)
        with await asyncio.to_thread(come, door, twin):  # its connection flapped as well
            await until_waiting(door, 1)
            has_looked = asyncio.Event()
            choice = asyncio.create_task(taken(door, holds="this start-1", waits=has_looked.set))
            await until(lambda: has_looked.is_set() or choice.done())
            with await asyncio.to_thread(come, door, HOLDING):
                assert (await choice).hello == HOLDING


async def test_buffers_of_an_earlier_try_are_not_taken_for_those_of_the_part() -> None:
    async with open_door() as door:
        earlier, later = door.new_incarnation(), door.new_incarnation()
        with await asyncio.to_thread(come, door, NodeHello(__version__, PART, earlier)):
            await until_waiting(door, 1)
            choice = asyncio.create_task(taken(door, holds=later))
            await asyncio.sleep(0.3)
            with await asyncio.to_thread(come, door, NodeHello(__version__, PART, later)):
                assert (await choice).hello.incarnation == later


async def test_place_without_a_past_is_not_taken_while_the_node_with_the_files_may_come() -> None:
    async with open_door() as door:
        with await asyncio.to_thread(come, door, NodeHello(__version__, "", "")):
            await until_waiting(door, 1)
            choice = asyncio.create_task(taken(door))
            await asyncio.sleep(0.3)
            served = NodeHello(__version__, PART, "an earlier start")
            with await asyncio.to_thread(come, door, served):
                assert (await choice).hello == served
            found = await door.take(PART, nothing, patience_s=0.0)
            found.sock.close()
            assert not found.hello.served, "no wait where no files are of use"


async def test_node_with_the_files_is_not_waited_for_when_it_comes_with_an_empty_folder(tmp_path: Path) -> None:
    LastNodes(tmp_path / "nodes.json", [PART]).note(PART, "gpu-3", PROCESS)
    last = LastNodes(tmp_path / "nodes.json", [PART]).process_of(PART)
    assert last == PROCESS, "a head that starts again knows it"
    anew = dataclasses.replace(EMPTY, process="later")
    async with open_door() as door, contextlib.AsyncExitStack() as stack:
        for each in (EMPTY, dataclasses.replace(anew, name="gpu-4"), anew):
            stack.enter_context(await asyncio.to_thread(come, door, each))
        await until_waiting(door, 3)
        found = await door.take(PART, nothing, patience_s=LONG_S, last=last)
        found.sock.close()
        assert found.hello == anew, "another place of the node that had it may be next to the one with its buffers"


def test_names_of_nodes_that_an_earlier_version_noted_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({PART: "gpu-3 (10.0.0.3)", "other": 7, "another site": "gpu-4"}))
    for _ in range(2):
        nodes = LastNodes(path, [PART, "other", "next"])
        assert (nodes.of(PART), nodes.process_of(PART), nodes.of("other")) == ("gpu-3 (10.0.0.3)", None, "")
        nodes.note("next", "gpu-5", PROCESS)


async def test_node_that_has_gone_is_not_given_away_and_a_stop_ends_the_wait() -> None:
    async with open_door() as door:
        gone = await asyncio.to_thread(come, door, NodeHello(__version__, PART, "this start-1"))
        await until_waiting(door, 1)
        gone.close()
        waits: list[int] = []

        def stop() -> None:
            waits.append(1)
            door.stop()

        with pytest.raises(WorkerError, match="the site stops"):
            await door.take(PART, stop)
        assert waits == [1]


async def taken(door: NodeDoor, *, holds: str = "", waits: Callable[[], None] = nothing) -> WaitingNode:
    held = Held(holds, PROCESS) if holds else None
    found = await door.take(PART, waits, holds=held, patience_s=LONG_S)
    found.sock.close()
    return found


async def until_waiting(door: NodeDoor, count: int) -> None:
    await until(lambda: door.num_waiting == count)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def _read_to_end(sock: socket.socket) -> bytes:
    """Until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := sock.recv(4096):
            data += more
    return data or b"closed"
