"""When a starting site begins to train, beside peers that say where they stand."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from dilocoxd.daemon.peers.membership import MembershipDriver
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.daemon.starting import Surroundings, catch_up
from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.telemetry.events import EventLog

FOUNDER = PeerId("QmFounder")


@dataclass(slots=True)
class Others:
    """What the founder says of itself, and where we stand."""

    claimed: int = 0
    own: int = 0
    lifecycle: Lifecycle = field(default_factory=Lifecycle)

    def views(self) -> tuple[PeerView, ...]:
        return (
            PeerView(
                peer=FOUNDER, is_live=True, is_training=False, height=RoundIndex(self.claimed), head=Digest(bytes(32)),
                step_seconds=None,
            ),
        )  # fmt: skip

    def surroundings(self, named_height: int) -> Surroundings:
        return Surroundings(
            bootstrap=(FOUNDER,),
            membership=cast(MembershipDriver, self),
            height=lambda: self.own,
            had_entries=lambda: False,
            named_height=named_height,
            contact_error=lambda _: "",
            unconfirmed=frozenset,
            recovery_text=lambda: "",
            lifecycle=self.lifecycle,
            events=cast(EventLog, None),
        )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.starting.LOOK_S", 0.0)


async def looks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_l18_who_has_nothing_of_the_entry_that_its_link_names_waits_beside_who_says_the_same() -> None:
    """A founder that starts anew says height 0 until it has read its log: a second run began beside it."""
    others = Others()
    beginning = asyncio.create_task(catch_up(others.surroundings(named_height=6)))
    await looks()
    assert not beginning.done()
    assert "a site that has entry 6 of this run, which the join link names" in others.lifecycle.waiting_for
    others.claimed = 14
    await looks()
    assert not beginning.done() and "entry 6" not in others.lifecycle.waiting_for
    others.own = 14
    await asyncio.wait_for(beginning, 10.0)


async def test_newcomer_of_a_run_without_entries_begins_beside_its_founder() -> None:
    await asyncio.wait_for(catch_up(Others().surroundings(named_height=0)), 10.0)


async def test_who_has_entries_is_not_held_by_its_link() -> None:
    await asyncio.wait_for(catch_up(Others(claimed=3, own=3).surroundings(named_height=6)), 10.0)
