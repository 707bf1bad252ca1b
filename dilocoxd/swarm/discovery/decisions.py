"""Passes on what was decided or voted about members and authorities, as far as it is news (protocol M4, M7, M8).

What is believed is decided in machines/admission; the files are kept by admissions.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.gate import Membership
from dilocoxd.swarm.discovery.admissions import Admissions
from dilocoxd.telemetry.alerts import raised
from dilocoxd.telemetry.catalogue import AuthoritiesChanged, Event
from dilocoxd.wire.admission import Revocation, decode_revocation
from dilocoxd.wire.authorities import AuthorityChange, pack_changes, unpack_changes
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.messages import AuthorityChanges, Revocations

ASK_TIMEOUT_S: Final = 20.0
ASK_PAUSE_S: Final = 5.0


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
            self._tell(Revocations((encode_struct(news),)))
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
            self._tell(AuthorityChanges((encode_struct(news),)))
        return news is not None

    def take(self, message: Revocations | AuthorityChanges) -> None:
        """What a member tells us. Raises WireError."""
        if self._admissions is None:
            return
        if isinstance(message, Revocations):
            if evictions := self._admissions.take(message):
                self._tell(Revocations(tuple(map(encode_struct, evictions))))
        elif changes := self._admissions.take_changes(message):
            self._tell(AuthorityChanges(tuple(map(encode_struct, changes))))

    def to_tell(self) -> list[AuthorityChanges | Revocations]:
        """All that a peer that we have just met should know."""
        return self._admissions.to_tell() if self._admissions is not None else []

    def known_authorities(self) -> bytes:
        """The resource `authorities`."""
        return pack_changes(self._admissions.book.authorities.known()) if self._admissions is not None else b""

    def note_unknown(self, peer: PeerId) -> None:
        """It shows an invite of authorities that we do not know; only the newest such peer is asked."""
        self._unknown = peer
        self._is_unknown.set()

    async def run(self, ask: Callable[[PeerId], Awaitable[bytes]], on_bad: Callable[[PeerId, WireError], None]) -> None:
        """Ask who was noted, seldom, for strangers can make us do it. What it says proves itself."""
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
