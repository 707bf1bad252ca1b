"""Which node a pipeline stage is given: its own, and never that of another stage which would then miss one."""

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from dilocoxd import __version__
from dilocoxd.daemon.head.door import NodeDoor
from dilocoxd.daemon.head.waiting import NodeProcess, WaitingNode
from dilocoxd.wire.local.node import STAGE_PLACE, NodeHello
from tests.integration.nodes.test_node_command import come, open_door, until, until_waiting

pytestmark = pytest.mark.processes
FIRST, SECOND = "0123456789abcdef.stage1of3", "0123456789abcdef.stage2of3"


def place(served: str = "") -> NodeHello:
    return NodeHello(__version__, served, "", "", STAGE_PLACE)


class Wanted:
    """Both stages at this door, without patience: what each would have now, and in the end has."""

    def __init__(self, door: NodeDoor, patience_s: Sequence[float] = (0.0, 0.0)) -> None:
        self.now: dict[int, str] = {}
        self._door, self._patience_s = door, patience_s

    async def taken(self) -> list[str]:
        found = await self._door.take_all((FIRST, SECOND), self._patience_s, self._seen)
        for node in found:
            node.sock.close()
        return [node.hello.served for node in found]

    def _seen(self, index: int, node: WaitingNode | None) -> None:
        self.now[index] = "nobody" if node is None else node.hello.served or "a new one"


async def test_stage_that_misses_its_node_does_not_take_that_of_another() -> None:
    async with open_door() as door, asyncio.TaskGroup() as group:
        with await asyncio.to_thread(come, door, place(SECOND)):
            await until_waiting(door, 1)
            wanted = Wanted(door)
            taken = group.create_task(wanted.taken())
            await until(lambda: len(wanted.now) == 2)
            assert wanted.now == {0: "nobody", 1: SECOND}, "the operator hears of the machine that is gone"
            with await asyncio.to_thread(come, door, place()):
                assert await taken == ["", SECOND]


async def test_node_that_goes_while_another_is_missed_is_missed_too() -> None:
    async with open_door() as door, asyncio.TaskGroup() as group:
        wanted = Wanted(door)
        with await asyncio.to_thread(come, door, place(SECOND)):
            taken = group.create_task(wanted.taken())
            await until(lambda: wanted.now == {0: "nobody", 1: SECOND})
        await until(lambda: wanted.now == {0: "nobody", 1: "nobody"})
        with await asyncio.to_thread(come, door, place()), await asyncio.to_thread(come, door, place(FIRST)):
            assert await taken == [FIRST, ""]


async def test_stage_moves_to_a_node_that_had_another_one_where_there_are_two_of_them() -> None:
    async with open_door() as door:
        with await asyncio.to_thread(come, door, place(SECOND)), await asyncio.to_thread(come, door, place(SECOND)):
            await until_waiting(door, 2)
            assert await Wanted(door).taken() == [SECOND, SECOND]


async def test_stage_waits_for_its_own_node_before_another_will_do() -> None:
    async with open_door() as door, asyncio.TaskGroup() as group:
        with await asyncio.to_thread(come, door, place()), await asyncio.to_thread(come, door, place(SECOND)):
            await until_waiting(door, 2)
            wanted = Wanted(door, (1000.0, 1000.0))
            taken = group.create_task(wanted.taken())
            await until(lambda: wanted.now == {0: "nobody", 1: SECOND})
            with await asyncio.to_thread(come, door, place(FIRST)):
                assert await taken == [FIRST, SECOND]


async def test_stage_does_not_wait_for_its_node_when_that_comes_with_an_empty_folder() -> None:
    last = NodeProcess(("127.0.0.1", "gpu-3", "a folder"), "earlier")
    anew = dataclasses.replace(place(), name="gpu-3", home="a folder", process="later")
    async with open_door() as door:
        with await asyncio.to_thread(come, door, place()), await asyncio.to_thread(come, door, anew):
            await until_waiting(door, 2)
            found = await door.take_all((FIRST, SECOND), (0.0, 1000.0), nobody_asks, (None, last))
            for node in found:
                node.sock.close()
            assert [node.hello for node in found] == [place(), anew], "and no other stage takes it"


def nobody_asks(index: int, node: WaitingNode | None) -> None:
    """What would be shown."""


async def test_node_whose_machine_has_another_name_now_gets_its_stage() -> None:
    """Names are for people: it is known by what it noted."""
    last = NodeProcess(("127.0.0.1", "gpu-3", "a folder"), "earlier")
    renamed = dataclasses.replace(place(SECOND), name="gpu-4", home="a folder", process="later", ran_by="earlier")
    async with open_door() as door:
        with await asyncio.to_thread(come, door, place()), await asyncio.to_thread(come, door, renamed):
            await until_waiting(door, 2)
            (found,) = await door.take_all([SECOND], [1000.0], lambda index, node: None, [last])
            found.sock.close()
            assert found.who == "gpu-4 (127.0.0.1)"
