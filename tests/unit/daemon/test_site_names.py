"""Sites by their names in all that a daemon shows, and each state called what it is."""

import asyncio
import dataclasses
import io
from pathlib import Path

import pytest

from dilocoxd.daemon.preparing import prepare
from dilocoxd.ids import PeerId
from dilocoxd.telemetry.catalogue import PeerLost
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.records import PeerRecord
from tests.reference.state_digest import EMPTY_DIGEST
from tests.unit.daemon.test_operator_side import Recorded, daemon_chain

ALICE = PeerId("QmV3nFQT4Rz4oTBvXxPZrp8RV3iQWbyZAgNPJXaLiCe1")
BOB = PeerId("QmWmyoMoctfbAaiEs2G46gpeUmhqFRDW6KWo64y5r581Vz")


def heard(world: Recorded, peer: PeerId, name: str, state: str = "training", sequence: int = 1) -> None:
    """A fresh record of `peer` came."""
    record = PeerRecord(
        peer, world.daemon.run_id, 1, 0, 1, sequence, 0, 30_000, state, (), EMPTY_DIGEST, 0, 0, EMPTY_DIGEST, -1,
        1500, 700, 0, name,
    )  # fmt: skip
    world.daemon.membership.on_record(record, is_own_word=True)


async def test_peers_status_and_timeline_call_sites_by_name(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run", "--name", "home")
    view = world.daemon.view
    heard(world, ALICE, "attic")
    heard(world, BOB, "")
    world.daemon.journal.others.look(ALICE, "training", 10.0)
    assert view.status().name == "home"
    assert {peer.peer_id: (peer.name, peer.tokens_per_s) for peer in view.peers()} == {
        ALICE: ("attic", 700),
        BOB: ("~r581Vz", 700),
    }
    assert [site.name for site in view.swarm_timeline(0).sites] == ["home", "attic"]


async def test_waits_alerts_failures_and_lines_say_names_and_the_file_keeps_ids(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run")
    daemon, shown = world.daemon, io.StringIO()
    heard(world, ALICE, "attic")
    daemon.lifecycle.enter("catching_up", f"an answer of {ALICE} or {BOB}")
    assert daemon.view.status().waiting_for == "an answer of attic or ~r581Vz"
    daemon.journal.add_failure(0, f"{ALICE}: connection broke")
    daemon.alerts.alert("bad_input", f"30 bad inputs of {BOB}")
    assert daemon.view.rounds(0, 1)[0].failures == ("attic: connection broke",)
    assert [alert.text for alert in daemon.view.alerts()] == ["30 bad inputs of ~r581Vz"]
    log = EventLog(tmp_path / "events.jsonl", stream=shown)
    log.in_words = daemon.names.in_words
    log.emit(PeerLost(peer=ALICE, reason=f"no route to /ip4/10.0.0.1/tcp/1/p2p/{ALICE}", silent_s=12.0))
    assert f"attic does not answer any more, for 12 s: no route to /ip4/10.0.0.1/tcp/1/p2p/{ALICE}" in shown.getvalue()
    assert f'"peer":"{ALICE}"' in (tmp_path / "events.jsonl").read_text()


async def test_a_stranger_with_our_name_is_not_taken_for_us(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run", "--name", "home")
    heard(world, ALICE, "HOME")
    assert [peer.name for peer in world.daemon.view.peers()] == ["HOME~aLiCe1"]
    assert world.daemon.view.status().name == f"home~{world.daemon.me[-6:]}"


@pytest.mark.parametrize("state", ["paused", "preparing", "catching_up"])
async def test_a_site_is_called_what_it_says(tmp_path: Path, state: str) -> None:
    world = Recorded(tmp_path / "run")
    heard(world, ALICE, "attic", state)
    assert [peer.state for peer in world.daemon.view.peers()] == [state]


async def test_a_site_that_never_answered_is_dead_and_nobody_says_when(tmp_path: Path) -> None:
    """It was remembered as training, and `last heard of 0 s ago`."""
    world = Recorded(tmp_path / "run")
    heard(world, ALICE, "attic")
    known = world.daemon.table.record(ALICE)
    assert known is not None
    world.daemon.table.__init__(world.daemon.me)  # type: ignore[misc]
    world.daemon.membership.on_record(dataclasses.replace(known, sequence=2), is_own_word=False)
    (peer,) = world.daemon.view.peers()
    assert (peer.state, peer.is_live, peer.last_seen_s) == ("dead", False, None)


async def test_until_the_trainers_train_a_site_prepares(tmp_path: Path) -> None:
    """It called itself training while it tokenised, and was told that it was left out."""
    daemon = Recorded(tmp_path / "run").daemon
    daemon.lifecycle.enter("preparing")
    assert (daemon.lifecycle.state, daemon.lifecycle.record_state) == ("preparing", "preparing")
    told: list[str] = []
    trains = lambda: daemon.site.status().is_training  # noqa: E731
    preparing = asyncio.create_task(
        prepare(daemon.lifecycle, trains, lambda: told.append(daemon.lifecycle.record_state))
    )
    await asyncio.sleep(0)
    assert daemon.lifecycle.state == "preparing" and not preparing.done()
    await daemon.site.begin(daemon_chain())
    await preparing
    assert daemon.lifecycle.state == "training" and told == ["preparing", "training"]
