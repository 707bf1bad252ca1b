"""Peer messages: ordered one-way sending with a bounded queue per peer, and calls that wait for their answer.

One-way messages of one peer travel on one stream, in order. Overflow rule: when QUEUE_MESSAGES_MAX or QUEUE_BYTES_MAX
wait for a peer, the oldest is dropped and counted; the round machine repeats what still matters. Messages that could
not be delivered for MESSAGE_AGE_MAX_S are dropped as well. A call has a stream of its own, so nothing delays it.
What comes in is budgeted for each peer, each network and all, because to read it costs processor time: a message beyond
that waits, and its stream with it; a call beyond that is refused (`busy`). Source: protocol/04-streams.md, S10.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.budget import Budget, Rate
from dilocoxd.swarm.streams.streams import PROTOCOL_CALL, PROTOCOL_MESSAGE, FrameStream, StreamGate
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, Hello

QUEUE_MESSAGES_MAX: Final = 256
QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024
MESSAGE_AGE_MAX_S: Final = 30.0
IDLE_STREAM_S: Final = 60.0
"""An outgoing stream with nothing to send is closed after this long."""
RETRY_FIRST_S: Final = 0.2
RETRY_MAX_S: Final = 5.0

OUTBOXES_MAX: Final = 1024
MESSAGE_COST_MIN: Final = 1024
"""Bytes that a short message counts for."""
EACH: Final = Rate(per_s=2 << 20, burst=16 << 20)
"""Of incoming messages, in bytes a second: some MB take about a fifth of a second of our processor."""
NETWORK: Final = Rate(per_s=4 << 20, burst=32 << 20)
TOTAL: Final = Rate(per_s=8 << 20, burst=64 << 20)
BUDGET_POLL_S: Final = 0.25

OnMessage = Callable[[PeerId, Any], Awaitable[None]]
"""Told each message in order; while it waits, that peer's stream waits (back-pressure)."""
OnCall = Callable[[PeerId, Any], Awaitable[Any]]
"""Answer to a call; raise ProtocolViolation or WireError to refuse it."""


@dataclass(slots=True)
class _Outbox:
    queue: deque[tuple[float, bytes]] = field(default_factory=deque)
    queued_bytes: int = 0
    is_filled: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    last_error: str = ""


class MessageChannel:
    """Outgoing queues and incoming handlers of PROTOCOL_MESSAGE and PROTOCOL_CALL."""

    def __init__(self, gate: StreamGate, on_message: OnMessage, on_call: OnCall) -> None:
        self._gate = gate
        self._on_message = on_message
        self._on_call = on_call
        self._outboxes: dict[PeerId, _Outbox] = {}
        self._senders: dict[PeerId, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        clock = asyncio.get_running_loop().time
        self._incoming = Budget(clock, each=EACH, network=NETWORK, total=TOTAL)
        self.on_lost: Callable[[PeerId], None] = lambda peer: None
        """Told of each peer to which a message was dropped, or was on its way when its stream broke."""
        self.counts: Counter[str] = Counter()
        """messages_sent, messages_received, messages_dropped_full, messages_dropped_old, messages_delayed,
        calls_refused, bytes_sent."""

    async def run(self, is_stopped: asyncio.Event) -> None:
        """Deliver what `send` queues until `is_stopped`; owns all sender tasks."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for peer in list(self._outboxes):
                    self._start_sender(peer)
                await is_stopped.wait()
            finally:
                self._group = None  # also when we are cancelled: what is sent from now on only waits in its queue
            for task in self._senders.values():
                task.cancel()

    def send(self, peer: PeerId, message: Any) -> None:
        """Queue one message for `peer`; returns at once. Best effort, in order (see overflow rule)."""
        data = PEER_MESSAGES.encode(message)
        now = asyncio.get_running_loop().time()
        box = self._outboxes.setdefault(peer, _Outbox())
        if len(self._outboxes) > OUTBOXES_MAX:
            self.forget(next(one for one in self._outboxes if one != peer))
        box.queue.append((now, data))
        box.queued_bytes += len(data)
        while len(box.queue) > QUEUE_MESSAGES_MAX or box.queued_bytes > QUEUE_BYTES_MAX:
            box.queued_bytes -= len(box.queue.popleft()[1])
            self.counts["messages_dropped_full"] += 1
            self.on_lost(peer)
        box.is_filled.set()
        self._start_sender(peer)

    def last_error(self, peer: PeerId) -> str:
        """Why the newest attempt to deliver to `peer` failed; empty if it did not."""
        return self._outboxes[peer].last_error if peer in self._outboxes else ""

    def forget(self, peer: PeerId) -> None:
        """Drop the queue of a peer that left."""
        if (box := self._outboxes.pop(peer, None)) is not None and box.queue:
            self.on_lost(peer)
        task = self._senders.pop(peer, None)
        if task is not None:
            task.cancel()

    def _start_sender(self, peer: PeerId) -> None:
        task = self._senders.get(peer)
        if self._group is not None and (task is None or task.done()):
            self._senders[peer] = self._group.create_task(
                self._deliver(peer, self._outboxes[peer]), name=f"messages to {peer}"
            )

    async def _deliver(self, peer: PeerId, box: _Outbox) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_STREAM_S):
                    await box.is_filled.wait()
            except TimeoutError:
                if not box.queue:
                    return
            try:
                await self._deliver_on_one_stream(peer, box)
                box.failures, box.last_error = 0, ""
            except (PeerError, WireError) as error:
                box.failures += 1
                box.last_error = str(error)
                self.on_lost(peer)
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(box.failures, 10)))
                self._drop_old(box)

    def _drop_old(self, box: _Outbox) -> None:
        oldest = asyncio.get_running_loop().time() - MESSAGE_AGE_MAX_S
        while box.queue and box.queue[0][0] < oldest:
            box.queued_bytes -= len(box.queue.popleft()[1])
            self.counts["messages_dropped_old"] += 1
        if not box.queue:
            box.is_filled.clear()

    async def _deliver_on_one_stream(self, peer: PeerId, box: _Outbox) -> None:
        """Send until the queue has been empty for IDLE_STREAM_S. A message leaves it when its write is done."""
        stream = await self._gate.open(peer, PROTOCOL_MESSAGE)
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                listener = group.create_task(self._listen_for_refusal(stream), name=f"refusals of {peer}")
                await self._drain_queue(stream, box)
                listener.cancel()
        except* (PeerError, WireError) as failed:
            failure = failed.exceptions[0]
        finally:
            stream.close()
        if failure is not None:
            raise PeerError(str(failure)) from failure

    async def _listen_for_refusal(self, stream: FrameStream) -> None:
        await stream.read(timeout_s=24 * 3600.0)

    async def _drain_queue(self, stream: FrameStream, box: _Outbox) -> None:
        while True:
            while box.queue:
                item = box.queue[0]
                await stream.write(FrameKind.MESSAGE, item[1])
                if box.queue and box.queue[0] is item:
                    box.queue.popleft()
                    box.queued_bytes -= len(item[1])
                self.counts["messages_sent"] += 1
                self.counts["bytes_sent"] += len(item[1])
            box.is_filled.clear()
            try:
                async with asyncio.timeout(IDLE_STREAM_S):
                    await box.is_filled.wait()
            except TimeoutError:
                return

    async def serve_messages(self, stream: FrameStream, hello: Hello) -> None:
        """Incoming PROTOCOL_MESSAGE stream: tell each message, until the opener closes."""
        while True:
            frame = await stream.read(FrameKind.MESSAGE, timeout_s=2 * IDLE_STREAM_S)
            await self._wait_for_budget(stream.peer, len(frame.payload))
            message = PEER_MESSAGES.decode(frame.message)
            self.counts["messages_received"] += 1
            if message is not None:
                await self._on_message(stream.peer, message)

    def _may_read(self, peer: PeerId, num_bytes: int) -> bool:
        return self._incoming.take(peer, max(MESSAGE_COST_MIN, num_bytes), network=self._gate.network(peer))

    async def _wait_for_budget(self, peer: PeerId, num_bytes: int) -> None:
        while not self._may_read(peer, num_bytes):
            self.counts["messages_delayed"] += 1
            await asyncio.sleep(BUDGET_POLL_S)

    async def call(self, peer: PeerId, message: Any, *, timeout_s: float = 10.0) -> Any:
        """The answer of `peer` to `message`. Raises Refused, PeerError (no answer in time), WireError (bad answer)."""
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self._gate.open(peer, PROTOCOL_CALL, timeout_s=timeout_s)
                try:
                    await stream.write(FrameKind.CALL, PEER_MESSAGES.encode(message))
                    frame = await stream.read(FrameKind.REPLY, timeout_s=timeout_s)
                finally:
                    stream.close()
        except TimeoutError:
            raise PeerError(f"{peer} did not answer {type(message).__name__} within {timeout_s:g} s") from None
        return PEER_MESSAGES.decode(frame.message)

    async def serve_call(self, stream: FrameStream, hello: Hello) -> None:
        """Incoming PROTOCOL_CALL stream: one message, one answer."""
        frame = await stream.read(FrameKind.CALL)
        if not self._may_read(stream.peer, len(frame.payload)):
            self.counts["calls_refused"] += 1
            raise WireError("busy", "more calls and messages than this site reads of one peer, network or of all")
        message = PEER_MESSAGES.decode(frame.message)
        if message is None:
            raise WireError("unknown_message", "a call must be understood")
        answer = await self._on_call(stream.peer, message)
        await stream.write(FrameKind.REPLY, PEER_MESSAGES.encode(answer))
