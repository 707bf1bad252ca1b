"""Passes on what was decided or voted about members and authorities, as far as it is news (protocol M4, M7, M8).

What is believed is decided in machines/admission; the files are kept by admissions.py.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.gate import Membership
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.swarm.streams.budget import Budget, Rate
from dilocoxd.telemetry.alerts import raised
from dilocoxd.telemetry.catalogue import AuthoritiesChanged, Event
from dilocoxd.wire.admission import Revocation, decode_revocation
from dilocoxd.wire.authorities import AuthorityChange, pack_changes, unpack_changes
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.messages import AuthorityChanges, Revocations

ASK_TIMEOUT_S: Final = 20.0
ASK_PAUSE_S: Final = 5.0
TELL_ALL: Final = Rate(per_s=1 / 60, burst=4)
"""So often one peer is told all, which may be some MB; it waits for the next time, and is told then."""
TELL_EVERY_S: Final = 5.0
TOLD_MAX: Final = 1024


class GreetedPeers:
    """Who has been told all, in which life of its process: whoever says hello again and again is told nothing anew."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.incarnation_of: Callable[[PeerId], int] = lambda peer: 0
        """The number of a peer's life, as its newest record has it; 0: no record of it is here."""
        self._budget = Budget(clock, each=TELL_ALL, keys_max=TOLD_MAX)
        self._told: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()
        """Its life then, and the number of news by then: who was out of touch has not heard those since."""
        self._owed: dict[PeerId, None] = {}

    def greet(self, peer: PeerId, num_news: int) -> None:
        """We have met it, at so many news."""
        if self._told.get(peer) != (self.incarnation_of(peer), num_news) and len(self._owed) < TOLD_MAX:
            self._owed[peer] = None

    def lose(self, peer: PeerId) -> None:
        """Something that was on its way to it may not have come."""
        self._told.pop(peer, None)

    def look(self) -> None:
        """The record of a new life may come later than its hello."""
        for peer, (incarnation, _) in self._told.items():
            if self.incarnation_of(peer) != incarnation and len(self._owed) < TOLD_MAX:
                self._owed[peer] = None

    def take_due(self, num_news: int) -> list[PeerId]:
        """Whom to tell all, now."""
        due = [peer for peer in self._owed if self._budget.take(peer)]
        for peer in due:
            del self._owed[peer]
            self._told[peer] = self.incarnation_of(peer), num_news
            self._told.move_to_end(peer)
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)
        return due


class Decisions:
    """`admissions` None: the run asks for no membership. `tell`: sends a message to everybody in touch."""

    def __init__(
        self, admissions: Admissions | None, tell: Callable[[Any], None], emit: Callable[[Event], None]
    ) -> None:
        self._admissions = admissions
        self._tell = tell
        self._emit = emit
        self._unknown = PeerId("")
        self._is_unknown = asyncio.Event()
        self.told = GreetedPeers()
        self._num_news = 0
        self.send: Callable[[PeerId, Any], None] = lambda peer, news: None
        """Sends a message to one peer."""
        self.shown_by = PeerId("")
        """Who has shown us that we are evicted; empty: nobody since the start."""
        if admissions is not None:
            admissions.on_authorities = self._on_authorities

    def evict(self, revocation: Revocation) -> bool:
        """End a membership, or vote for it; whether it is news. Raises WireError."""
        if self._admissions is None:
            raise WireError("not_allowed", "this run has no memberships")
        news = self._admissions.evict(revocation)
        if news is not None:
            self._pass_on(Revocations((encode_struct(news),)))
        return news is not None

    def take_refusal(self, peer: PeerId, proof: bytes, own: Membership | None) -> None:
        """`peer` refuses us, the member `own`, and shows why. Its word alone is only a claim: what it shows must be
        the revocation of this very membership, and is checked like any. Raises WireError."""
        if self._admissions is None or not proof or own is None or own in self._admissions.book.revocations:
            return
        revocation = decode_revocation(proof)
        if (revocation.terms.peer, revocation.terms.serial) != own:
            raise WireError("bad_membership", "the proof of an eviction is about another membership")
        if self.evict(revocation):
            self.shown_by = peer

    def change_authorities(self, change: AuthorityChange) -> bool:
        """Settle a change of the authorities, or vote for it; whether it is news. Raises WireError."""
        if self._admissions is None:
            raise WireError("not_allowed", "this run has no authorities")
        news = self._admissions.change(change)
        if news is not None:
            self._pass_on(AuthorityChanges((encode_struct(news),)))
        return news is not None

    def take(self, message: Revocations | AuthorityChanges) -> None:
        """What a member tells us. Raises WireError."""
        if self._admissions is None:
            return
        if isinstance(message, Revocations):
            if evictions := self._admissions.take(message):
                self._pass_on(Revocations(tuple(map(encode_struct, evictions))))
        elif changes := self._admissions.take_changes(message):
            self._pass_on(AuthorityChanges(tuple(map(encode_struct, changes))))

    def _pass_on(self, news: Revocations | AuthorityChanges) -> None:
        self._num_news += 1
        self._tell(news)

    def greet(self, peer: PeerId) -> None:
        """We have just met it: it should know all, unless it has been told."""
        if self._admissions is not None:
            self.told.greet(peer, self._num_news)
            self._tell_due()

    def _tell_due(self) -> None:
        if self._admissions is None or not (due := self.told.take_due(self._num_news)):
            return
        everything = self._admissions.to_tell()
        for peer in due:
            for news in everything:
                self.send(peer, news)

    def known_authorities(self) -> bytes:
        """The resource `authorities`."""
        return pack_changes(self._admissions.book.authorities.known()) if self._admissions is not None else b""

    def note_unknown(self, peer: PeerId) -> None:
        """It shows an invite of authorities that we do not know; only the newest such peer is asked."""
        self._unknown = peer
        self._is_unknown.set()

    async def run(self, ask: Callable[[PeerId], Awaitable[bytes]], on_bad: Callable[[PeerId, WireError], None]) -> None:
        """Ask who was noted, and tell who had to wait for it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask_noted(ask, on_bad), name="asks for authorities")
            while True:
                await asyncio.sleep(TELL_EVERY_S)
                self.told.look()
                self._tell_due()

    async def _ask_noted(
        self, ask: Callable[[PeerId], Awaitable[bytes]], on_bad: Callable[[PeerId, WireError], None]
    ) -> None:
        """Seldom, for strangers can make us do it. What it says proves itself."""
        while True:
            await self._is_unknown.wait()
            self._is_unknown.clear()
            peer = self._unknown
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    answer = await ask(peer)
                for change in unpack_changes(answer):
                    self.change_authorities(change)
            except WireError as error:
                on_bad(peer, error)
            except (PeerError, TimeoutError):
                pass  # it is noted again when it knocks again
            await asyncio.sleep(ASK_PAUSE_S)

    def _on_authorities(self) -> None:
        assert self._admissions is not None, "it says so"
        book = self._admissions.book.authorities
        now, by = book.now, "members" if book.in_force and book.in_force[-1].votes else "authorities"
        keys = tuple(key.hex() for key in now.keys)
        self._emit(AuthoritiesChanged(number=now.number, threshold=now.threshold, keys=keys, decided_by=by))
        shown = ", ".join(key[:16] for key in keys)
        self._alert("authorities_changed", f"list {now.number} is in force: {now.threshold} of {shown} decide")
        if rivals := book.rivals():
            numbers = ", ".join(sorted({str(one.terms.number) for one in rivals}))
            self._alert("rival_authorities", f"two changes have number {numbers}; list {now.number} is in force")

    def _alert(self, code: str, text: str) -> None:
        self._emit(raised(code, text))
