"""What arrives before the round machine exists is dropped or refused as busy; offences are counted and told."""

import hashlib
import io

import pytest

from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.peers.arrivals import ROUND_MESSAGES, Arrivals
from dilocoxd.daemon.peers.dial_back import DialBack
from dilocoxd.daemon.peers.offences import DIGEST_MISMATCH, Offences
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, UnixTime
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.messages import Ready

PEER = PeerId("QmPeer")


async def nowhere(_peer: PeerId) -> tuple[str, ...]:
    return ()


def arrivals() -> Arrivals:
    dial_back = DialBack(lambda _peer: (), nowhere, lambda: 0.0)
    return Arrivals(describe=None, library=None, dial_back=dial_back)  # type: ignore[arg-type]


async def test_messages_of_rounds_are_dropped_until_there_is_a_round_machine() -> None:
    assert Ready in ROUND_MESSAGES
    await arrivals().on_message(PEER, object.__new__(Ready))
    with pytest.raises(WireError, match="EventLog"):
        await arrivals().on_message(PEER, EventLog(None, stream=io.StringIO()))


async def test_payloads_are_refused_as_busy_until_then() -> None:
    with pytest.raises(WireError, match="still starting"):
        arrivals().accept(PEER, None)  # type: ignore[arg-type]
    await arrivals().on_segment(PEER, None)  # type: ignore[arg-type]


async def test_whoever_asks_is_dialled_back_at_its_own_addresses_only() -> None:
    served = await arrivals().open_resource(PEER, "reach")
    assert served.sha256 == hashlib.sha256(b"[]").digest()
    served.close()


def test_offence_is_counted_told_and_in_one_case_an_alert() -> None:
    events = EventLog(None, stream=io.StringIO())
    told: list[object] = []
    events.listen(lambda record: told.append(record["event"]))
    journal, guard = Journal(lambda: UnixTime(1000.0)), PeerGuard(lambda: 0.0, allowed=frozenset())
    alerts = AlertBook(journal, events)
    offences = Offences(guard, events, alerts)
    offences.count(PEER, "malformed", "a short frame")
    assert (told, guard.bad_input()) == (["input.rejected"], {PEER: {"malformed": 1}})
    offences.count(PEER, DIGEST_MISMATCH, "0011")
    assert alerts.stands(DIGEST_MISMATCH) and journal.alerts[DIGEST_MISMATCH].since == 1000.0
    alerts.clear(DIGEST_MISMATCH)
    alerts.clear(DIGEST_MISMATCH)
    assert told[1:] == ["input.rejected", "alert.raised", "alert.cleared"] and not journal.alerts
