"""The driver's inbox: a deadline that has passed is told after what lay there, and neither starves the other (R18)."""

import asyncio
import time

from dilocoxd.daemon.round.inbox import EVENTS_OF_ONE_MAX, RoundInbox
from dilocoxd.ids import Monotonic, PeerId, RoundIndex
from dilocoxd.machines.round.inputs import DeadlineReached, EntryPersisted, Event, MessageReceived
from dilocoxd.wire.messages import Leaving

PEER = PeerId("p")
GOODBYE = Leaving(RoundIndex(0), "x")


def in_loop(deadline_in_s: float | None, num_messages: int, num_taken: int) -> tuple[list[Event], list[float], float]:
    """(events taken, their times, the deadline). The deadline lies so far from now; messages are there already."""

    async def take() -> tuple[list[Event], list[float], float]:
        now = asyncio.get_running_loop().time()
        deadline = None if deadline_in_s is None else Monotonic(now + deadline_in_s)
        inbox = RoundInbox(lambda: deadline)
        for _ in range(num_messages):
            await inbox.tell_message(PEER, GOODBYE)
        taken = [await inbox.next() for _ in range(num_taken)]
        return [event for event, _ in taken], [at for _, at in taken], deadline or 0.0

    return asyncio.run(take())


def test_what_lay_in_the_inbox_comes_before_a_deadline_that_has_passed() -> None:
    events, times, deadline = in_loop(-60.0, num_messages=3, num_taken=4)
    assert events == [*[MessageReceived(PEER, GOODBYE)] * 3, DeadlineReached()]
    assert all(at < deadline for at in times[:3]), "for the machine the deadline passes only when it is told"
    assert times[3] >= deadline + 60.0, "and then it sees how long it was not running"


def test_a_passed_deadline_comes_again_and_again_but_starves_nothing() -> None:
    events, _, _ = in_loop(-1.0, num_messages=0, num_taken=3)
    assert events == [DeadlineReached()] * 3

    async def both() -> list[Event]:
        inbox = RoundInbox(lambda: Monotonic(0.0))
        taken = []
        for _ in range(4):
            inbox.tell(EntryPersisted(RoundIndex(1)))
            inbox.tell(EntryPersisted(RoundIndex(1)))
            taken.append((await inbox.next())[0])
        return taken

    got = asyncio.run(both())
    assert DeadlineReached() in got and EntryPersisted(RoundIndex(1)) in got


def test_the_deadline_comes_when_nothing_else_does() -> None:
    events, times, deadline = in_loop(0.02, num_messages=0, num_taken=1)
    assert events == [DeadlineReached()] and times[0] >= deadline


def test_events_come_at_their_time_while_no_deadline_has_passed() -> None:
    before = time.monotonic()
    events, times, _ = in_loop(None, num_messages=2, num_taken=2)
    assert len(events) == 2 and times == sorted(times) and times[0] >= before


def test_a_loop_that_was_blocked_reads_what_came_meanwhile_first() -> None:
    async def blocked() -> list[Event]:
        loop = asyncio.get_running_loop()
        deadline = Monotonic(loop.time() + 0.02)
        inbox = RoundInbox(lambda: deadline)
        waiting = asyncio.create_task(inbox.next(), name="reader")
        await asyncio.sleep(0)
        loop.call_soon(inbox.tell, EntryPersisted(RoundIndex(1)))
        while loop.time() < deadline:
            pass  # nothing runs meanwhile
        first = (await waiting)[0]
        return [first, (await inbox.next())[0]]

    assert asyncio.run(blocked()) == [EntryPersisted(RoundIndex(1)), DeadlineReached()]


def test_one_that_floods_waits_for_itself_and_leaves_nothing_behind() -> None:
    async def flooded() -> tuple[int, int, int]:
        inbox = RoundInbox(lambda: None)
        flood = [asyncio.create_task(inbox.tell_message(PEER, GOODBYE)) for _ in range(3 * EVENTS_OF_ONE_MAX)]
        await asyncio.sleep(0)
        waiting = inbox._queue.qsize()
        await inbox.tell_message(PeerId("honest"), GOODBYE)
        flood.pop().cancel()
        taken = [await inbox.next() for _ in range(3 * EVENTS_OF_ONE_MAX)]
        return waiting, len(taken), len(inbox._own_room)

    assert asyncio.run(flooded()) == (EVENTS_OF_ONE_MAX, 3 * EVENTS_OF_ONE_MAX, 0)
