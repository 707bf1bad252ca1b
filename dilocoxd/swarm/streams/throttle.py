"""Upload: a token bucket that every bulk piece waits for, how fast it is, and how serving makes way for exchanges."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.ids import PeerId
from dilocoxd.wire.frames import PIECE_BYTES

SERVING_SHARE: Final = 0.1
"""Part of the measured upload speed that serving may take while an exchange sends: what delays a round."""
SERVING_PAUSE_MAX_S: Final = 2.0
"""Longest wait for one piece, so that whoever fetches it sees progress."""
SLICE_S: Final = 0.05
REPEATS_MAX: Final = 3
"""So often what went behind others is asked anew (S11.5): no more for who reads it all and ends each connection."""
GATES_MAX: Final = 4096
SPEEDS_MAX: Final = 1024
SPEED_EVERY_S: Final = 1.0
"""So long payloads are counted together while they follow each other without a pause."""
NEWEST_SHARE: Final = 0.3
"""Of the newest measurement in the smoothed speed."""

PIECE_S: Final = 8.0
"""A piece shall take no longer, of the 14 s that a frame has (S3.2)."""
LINES_UNKNOWN: Final = 2
"""Connections that are written at a time while nobody knows how fast the line is."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    num_bytes: int
    since: float
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Line:
    credit: int
    """Bytes that may go before it is another receiver's turn."""
    waiting: deque[_Asked] = field(default_factory=deque)


class TokenBucket:
    """At most `bytes_per_s` on average, `burst_bytes` at once; 0 = no limit. First come, first served among those who
    send to one receiver; receivers take turns of `turn_bytes`, however many ask for each.

    In one line for all, eight connections to one site have eight pieces go before the first one to another: seconds,
    where the limit is low. Source: deficit round robin (Shreedhar, Varghese 1995).
    """

    def __init__(self, bytes_per_s: float, *, burst_bytes: int = 1024 * 1024, turn_bytes: int = PIECE_BYTES) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_bytes, self._turn_bytes = burst_bytes, turn_bytes
        self._free_at = 0.0
        """When the bucket will be full again, were nothing more taken."""
        self._lines: OrderedDict[PeerId, _Line] = OrderedDict()
        """Who waits, by receiver, whose turn it is first; whoever is not waited for has no line."""
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, receiver: PeerId, num_bytes: int) -> None:
        """Return when `num_bytes` may be sent to this receiver. Who is cancelled meanwhile has taken nothing."""
        if self.bytes_per_s <= 0:
            return
        loop = asyncio.get_running_loop()
        asked = _Asked(num_bytes, loop.time(), loop.create_future())
        self._lines.setdefault(receiver, _Line(self._turn_bytes)).waiting.append(asked)
        self._let_go()
        try:
            await asked.turn
        except asyncio.CancelledError:
            if asked.turn.cancelled():
                self._let_go()
            else:  # its turn came in the moment in which it was called off
                self.give_back(num_bytes)
            raise

    def give_back(self, num_bytes: int) -> None:
        """So many bytes of those that were taken are not sent: whoever comes next has them."""
        if self.bytes_per_s > 0:
            now = asyncio.get_running_loop().time()  # a full bucket, not more, for who waited all the while
            self._free_at = max(self._free_at - num_bytes / self.bytes_per_s, now)
            self._let_go()

    def _let_go(self) -> None:
        """Those whose turn it is, as far as there is something to take; a timer for the next one."""
        now = asyncio.get_running_loop().time()
        while (asked := self._next()) is not None:
            free_at = max(self._free_at, asked.since) + asked.num_bytes / self.bytes_per_s
            wait_s = free_at - now - self._burst_bytes / self.bytes_per_s
            if wait_s > 0:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._let_go)
                return
            self._free_at = free_at
            line = next(iter(self._lines.values()))
            line.credit -= line.waiting.popleft().num_bytes
            asked.turn.set_result(None)

    def _next(self) -> _Asked | None:
        """The first of the first line, once those who were called off have left and that line has credit for it."""
        while self._lines:
            receiver, line = next(iter(self._lines.items()))
            while line.waiting and line.waiting[0].turn.done():
                line.waiting.popleft()
            if not line.waiting:
                del self._lines[receiver]
            elif line.waiting[0].num_bytes > line.credit:
                line.credit += self._turn_bytes
                self._lines.move_to_end(receiver)
            else:
                return line.waiting[0]
        return None


@dataclass(slots=True)
class _Busy:
    since: float
    num_under_way: int = 0
    num_bytes: int = 0
    is_from_start: bool = True
    """Nothing was under way before `since`: all that these bytes took is counted."""


class SendingSpeeds:
    """Bytes per second to each peer of all payloads together: many are under way at once, and share the link."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: None: that of the running loop."""
        self.bytes_per_s: dict[PeerId, float] = {}
        """Smoothed."""
        self._busy: dict[PeerId, _Busy] = {}
        self._clock = clock or (lambda: asyncio.get_running_loop().time())

    def begin(self, peer: PeerId) -> None:
        """A payload is sent; `end` follows."""
        busy = self._busy.setdefault(peer, _Busy(self._clock()))
        busy.num_under_way += 1

    def end(self, peer: PeerId, num_bytes: int | None) -> None:
        """It is there, and so many bytes were needed for it; None: it is not."""
        now, busy = self._clock(), self._busy[peer]
        busy.num_under_way -= 1
        if num_bytes is None:  # time in which nobody answers says nothing of the link
            busy.since, busy.num_bytes, busy.is_from_start = now, 0, False
        else:
            busy.num_bytes += num_bytes
        if busy.num_bytes and (not busy.num_under_way or now - busy.since >= SPEED_EVERY_S):
            self._note(peer, busy, now - busy.since)
            busy.since, busy.num_bytes, busy.is_from_start = now, 0, False
        if not busy.num_under_way:
            del self._busy[peer]

    def _note(self, peer: PeerId, busy: _Busy, elapsed_s: float) -> None:
        """What ends just behind another payload was sent before it as well: a short time counts for as little."""
        part = 1.0 if busy.is_from_start else min(1.0, elapsed_s / SPEED_EVERY_S)
        known = self.bytes_per_s.get(peer)
        if known is None and part < 1.0:
            return
        speed = busy.num_bytes / max(elapsed_s, 1e-6)
        share = NEWEST_SHARE * part
        self.bytes_per_s[peer] = speed if known is None else (1 - share) * known + share * speed
        while len(self.bytes_per_s) > SPEEDS_MAX:
            del self.bytes_per_s[next(iter(self.bytes_per_s))]

    def to(self, peer: PeerId) -> float:
        """Smoothed, to this one; 0: not known."""
        return self.bytes_per_s.get(peer, 0.0)

    def fastest(self) -> float | None:
        """While something is sent: 0 = not known yet. None while nothing is."""
        return max(self.bytes_per_s.values(), default=0.0) if self._busy else None


class PeerGates:
    """How much may be under way to each peer at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._gates: dict[PeerId, asyncio.Semaphore] = {}

    def to(self, peer: PeerId) -> asyncio.Semaphore:
        """The gate to this peer."""
        gate = self._gates.setdefault(peer, asyncio.Semaphore(self._most))
        if len(self._gates) > GATES_MAX:
            del self._gates[next(iter(self._gates))]
        return gate


class SendingPlace:
    """Of one payload, or part of one, among those that are written to a peer at a time."""

    def __init__(self, gate: asyncio.Semaphore) -> None:
        self._gate = gate
        self._is_held = False

    async def enter(self) -> None:
        """Take it, unless it is held."""
        if not self._is_held:
            await self._gate.acquire()
            self._is_held = True

    def leave(self) -> None:
        """Give it to the next one, unless that is done."""
        if self._is_held:
            self._is_held = False
            self._gate.release()


class ServingLimit:
    """What serving (manifest, chain, snapshots) may send: a bucket of its own, and little while an exchange sends."""

    def __init__(
        self, bytes_per_s_max: float, exchange_speed: Callable[[], float | None], upload: TokenBucket | None = None
    ) -> None:
        """`exchange_speed`: bytes per second of the exchange that is sending now (0 = not known yet); None = none.
        `upload`: the limit that exchanges and serving share; None: there is none."""
        self._own = TokenBucket(bytes_per_s_max)
        self._exchange_speed = exchange_speed
        self._upload = upload

    async def take(self, receiver: PeerId, num_bytes: int) -> None:
        """Return when `num_bytes` may be sent to this receiver."""
        await self._own.take(receiver, num_bytes)
        clock = asyncio.get_running_loop().time
        started = clock()
        while (speed := self._exchange_speed()) is not None:
            pause_s = min(SERVING_PAUSE_MAX_S, num_bytes / (SERVING_SHARE * speed) if speed else SERVING_PAUSE_MAX_S)
            left_s = started + pause_s - clock()
            if left_s <= 0:
                break
            await asyncio.sleep(min(SLICE_S, left_s))
        if self._upload is not None:
            await self._upload.take(receiver, num_bytes)


class Writers:
    """How many connections to one peer are written at a time: as many as its line serves, and no more than allowed.

    They share the line. Eight of each of seven peers leave so little of a thin one to each that no piece is whole when
    the time of its frame is over: it breaks, is sent again, and breaks again. Who waits longest comes first.
    """

    def __init__(self, most: int) -> None:
        self._most = self._fitting = self._trusted = most
        self._num_taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def num(self) -> int:
        """At a time, now."""
        return min(self._fitting, self._trusted)

    def fit(self, bytes_per_s: float) -> None:
        """To the speed of all that is sent to this peer; 0: not known."""
        fitting = int(bytes_per_s * PIECE_S / PIECE_BYTES) if bytes_per_s > 0 else LINES_UNKNOWN
        self._fitting = max(1, min(self._most, fitting))
        self._let_in()

    def shrink(self) -> None:
        """An exchange broke: the line may have become thinner than it was when its speed was measured."""
        self._trusted = max(1, self.num // 2)

    def grow(self) -> None:
        """An exchange has come to its end."""
        self._trusted = min(self._most, self._trusted + 1)
        self._let_in()

    async def acquire(self) -> None:
        """Return when one more may be written; pair with `release`."""
        if self._num_taken < self.num:  # whoever waits has been let in
            self._num_taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was our turn in the moment in which we were called off
                self.release()
            raise

    def release(self) -> None:
        """It is written."""
        self._num_taken -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._num_taken < self.num:
            turn = self._waiting.popleft()
            if not turn.done():  # who waited may have been called off
                self._num_taken += 1
                turn.set_result(None)
