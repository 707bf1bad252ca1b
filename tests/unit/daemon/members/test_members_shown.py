"""What `dilocoxd members` is told of the invite that each member came by (daemon/peers/members.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dilocoxd.daemon.peers.members import Members
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.authority_book import AuthorityBook
from dilocoxd.machines.admission.gate import AdmissionBook
from dilocoxd.swarm.streams.streams import unix_ms
from dilocoxd.wire.codec import encode_struct
from tests.unit.machines.admission.chains import Chain
from tests.unit.machines.admission.test_gate import AUTHORITIES, NOW, A, B, C, membership, revocation

LATER = unix_ms() + 3_600_000
ME = PeerId("M")


def states(book: AdmissionBook) -> dict[str, str | None]:
    """By peer; this site came by an invite of its own."""
    own = membership(ME, serial=1, uses=1, not_after_ms=LATER)
    doors = SimpleNamespace(own_membership=lambda: (ME, 1))
    swarm: Any = SimpleNamespace(admissions=SimpleNamespace(book=book), doors=doors)
    me: Any = SimpleNamespace(peer_id=ME)
    chain: Any = Chain(["-"] * 3)
    return {row.peer_id: row.invite_state for row in Members(swarm, me, chain, encode_struct(own), str).shown()}


def test_invite_that_admits_nobody_any_more_is_not_called_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a single site, which had come, was shown as open until its time was over."""
    book = AdmissionBook(AUTHORITIES)
    book.take_in(membership(A, uses=2, not_after_ms=LATER), A, NOW)
    book.take_in(membership(C, serial=8, not_after_ms=NOW), C, NOW)
    assert states(book) == {ME: "used up", A: "open", C: "expired"}
    book.take_in(membership(B, uses=2, not_after_ms=LATER), B, NOW)
    assert states(book)[A] == "used up"
    book.revoke(revocation(B))
    assert states(book) == {ME: "used up", A: "closed", C: "expired", B: None}
    monkeypatch.setattr(AuthorityBook, "void_from", lambda self, listed: 3)
    assert states(book) == {ME: "void", A: "closed", C: "void", B: None}
    monkeypatch.setattr(AuthorityBook, "void_from", lambda self, listed: 4)
    assert states(book)[ME] == "used up", "the chain is not there yet"
