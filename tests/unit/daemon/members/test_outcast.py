"""A site that is evicted halts and says so; it goes on when the revocation does not hold for it any more."""

from __future__ import annotations

from typing import Any

from dilocoxd.daemon.chain.pauses import Pauses
from dilocoxd.daemon.peers.outcast import OutcastParts, OutcastWatch
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.ids import PeerId
from dilocoxd.wire.admission import Revocation
from tests.unit.machines.admission.test_gate import B, revocation


class Place:
    """The rest of the daemon: the site, the alerts, the round driver."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        self.lifecycle.enter("training")
        self.paused, self.standing, self.halts, self.told = "", {}, [], 0  # type: ignore[var-annotated]
        self.eviction: Revocation | None = None
        self.in_touch: frozenset[PeerId] = frozenset()
        place: Any = self
        self.watch = OutcastWatch(
            OutcastParts(
                eviction=lambda: self.eviction,
                shown_by=lambda: "anna",
                in_touch=lambda: self.in_touch,
                halt_rounds=self.halts.append,
                lifecycle=self.lifecycle,
                pauses=Pauses(place),
                alerts=place,
                tell_others=lambda: None,
            )
        )

    def pause(self, reason: str) -> None:
        self.paused = reason

    def resume(self) -> None:
        self.paused = ""

    def alert(self, code: str, text: str) -> None:
        self.told += 1
        self.standing[code] = text

    def clear(self, code: str) -> None:
        self.standing.pop(code, None)


def test_evicted_site_halts_and_says_by_whom_and_what_to_do() -> None:
    place = Place()
    place.watch.look()
    assert place.lifecycle.state == "training" and not place.standing and place.halts == [False]
    place.eviction = revocation(B)
    for _ in range(3):
        place.watch.look()
    assert place.lifecycle.state == "paused" and place.halts[-1] and place.told == 1
    for text in (place.paused, place.lifecycle.evicted, place.standing["evicted"]):
        assert "evicted from the run by its authorities (shown by anna)" in text and "dilocoxd join LINK" in text


def test_rounds_are_followed_where_somebody_lets_it_in_all_the_same() -> None:
    place = Place()
    place.eviction, place.in_touch = revocation(B), frozenset({PeerId("C")})
    place.watch.look()
    assert place.halts == [False] and place.paused, "its branch may be one on which we are a member"


def test_site_goes_on_when_the_revocation_does_not_hold_any_more() -> None:
    place = Place()
    place.eviction = revocation(B)
    place.watch.look()
    place.eviction = None
    place.watch.look()
    assert place.lifecycle.state == "training" and not (place.paused or place.standing or place.halts[-1])
