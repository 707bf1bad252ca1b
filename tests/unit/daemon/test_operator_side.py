"""What an operator sees of and does to a Daemon that is not started: view, control, alerts, token, dial-back."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from dilocoxd.api.endpoints import ENDPOINTS
from dilocoxd.api.responses.encoding import encoded
from dilocoxd.cli.main import cli
from dilocoxd.daemon.assembly import Daemon
from dilocoxd.daemon.chain.pauses import Pauses
from dilocoxd.daemon.control import DaemonControl
from dilocoxd.daemon.observe.alert_rules import Seen
from dilocoxd.daemon.peers import dial_back as reach
from dilocoxd.daemon.peers.dial_back import DialBack, ask_peers
from dilocoxd.daemon.process.open_run import Opened
from dilocoxd.daemon.process.token import load_or_create_token
from dilocoxd.errors import CommandRefused, ConfigError, PeerError, WireError
from dilocoxd.ids import Digest, PeerId, RunId
from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import load_or_create
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.masking import masked
from dilocoxd.wire.entry import genesis_hash
from dilocoxd.wire.messages import PROTOCOL_MAJOR
from dilocoxd.wire.records import PeerRecord
from tests.harness.shapes import assert_shape
from tests.harness.synthetic.fake_site import FakeSite

PEER = PeerId("QmPeer")


class Recorded:
    """The daemon and the events it tells."""

    def __init__(self, folder: Path, *options: str) -> None:
        done = CliRunner().invoke(cli, ["init", "tiny", "--dir", str(folder), *options], standalone_mode=False)
        assert done.exception is None, done.output
        run_dir = open_run_dir(folder)
        manifest, config = run_dir.load()
        events = EventLog(None, stream=io.StringIO())
        opened = Opened(run_dir, manifest, config, load_or_create(run_dir.identity(config)), events)
        self.records: list[dict[str, object]] = []
        events.listen(self.records.append)
        log = EntryLog(run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))
        self.daemon = Daemon(opened, log, FakeSite)
        self.stopped: list[str] = []
        self.control = DaemonControl(self.daemon.control_parts(), self.stopped.append)

    def told(self) -> list[object]:
        return [record["event"] for record in self.records]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[Recorded]:
    yield Recorded(tmp_path / "run")


async def test_every_answer_has_its_documented_shape(world: Recorded) -> None:
    view = world.daemon.view
    world.daemon.journal.add_failure(0, "attempt 0: nobody")
    world.daemon.journal.add_inner_loss(1, 5.0)
    world.daemon.journal.add_validation_loss(0, 5.5)
    world.daemon.journal.add_span("compute", 1.0, 2.0, 0)
    world.daemon.journal.others.look(PEER, "training", 10.0)
    world.daemon.alerts.alert("disk_low", "1 GB left")
    found: dict[str, Any] = {
        "status": view.status(),
        "peers": view.peers(),
        "rounds": view.rounds_before(None, 10),
        "round_": view.round(0),
        "losses": view.losses(),
        "timeline": view.timeline(),
        "sites_timeline": view.swarm_timeline(0),
        "alerts": view.alerts(),
        "log": await view.log(None, 10),
        "snapshots": await view.snapshots(),
        "config": view.config(),
        "profile": view.profile(),
        "sample": view.sample(),
        "past_alerts": view.past_alerts(),
        "recent_events": view.recent_events(10),
    }
    by_name = {endpoint.name: endpoint for endpoint in ENDPOINTS}
    for name, value in found.items():
        assert_shape(by_name[name].answer, encoded(value))
    assert found["status"].state == "starting" and found["alerts"][0].code == "disk_low"
    assert [site.peer_id for site in found["sites_timeline"].sites] == [world.daemon.me, PEER]
    assert await view.log_entry(0) is None and view.round(9) is None
    assert "dilocoxd_height 0" in view.metrics()


async def test_pause_and_resume_reach_the_site_and_the_others(world: Recorded) -> None:
    daemon = world.daemon
    daemon.lifecycle.enter("training")
    await daemon.site.begin(daemon_chain())
    assert daemon.view.is_ready
    world.control.pause("a disk is exchanged")
    assert world.control.pause("and a fan") == "the site is paused already; the reason is now: and a fan"
    assert (daemon.lifecycle.state, daemon.lifecycle.record_state) == ("paused", "paused")
    assert not daemon.site.status().is_training and not daemon.view.is_ready
    daemon.ledger.pause("catching up")
    daemon.ledger.resume()
    assert not daemon.site.status().is_training, "the end of a recovery does not end an operator's pause"
    world.control.resume()
    assert daemon.site.status().is_training and daemon.lifecycle.state == "training"
    with pytest.raises(CommandRefused, match="not paused"):
        world.control.resume()
    assert world.told() == ["site.paused", "site.resumed"]


def daemon_chain() -> Any:
    """A chain without own contributions."""
    from dilocoxd.machines.phase.settings import StartingPoint

    return StartingPoint()


async def test_a_goodbye_is_told_also_of_a_site_that_was_not_live_when_we_last_looked(world: Recorded) -> None:
    """It stood still, was held for lost, and leaves in order: who waits for its goodbye hears it."""

    def heard(sequence: int, state: str) -> None:
        world.daemon.membership.on_record(record_of(world.daemon.run_id, sequence, state), is_own_word=True)

    heard(1, "training")
    assert world.told() == ["peer.found"]
    heard(2, "leaving")
    heard(3, "left")
    assert world.told() == ["peer.found", "peer.left"]


def record_of(run_id: RunId, sequence: int, state: str) -> PeerRecord:
    """A heartbeat of PEER."""
    return PeerRecord(
        peer=PEER, run_id=run_id, protocol_major=PROTOCOL_MAJOR, protocol_minor=0, incarnation=1, sequence=sequence,
        unix_ms=1, ttl_ms=60_000, state=state, addresses=(), chain_head=Digest(b"h" * 32), chain_height=0,
        chain_weight=0, state_digest=Digest(b"s" * 32), contributed_round=-1, milli_steps_per_s=0, tokens_per_s=0,
        upload_bytes_per_s=0, name="attic",
    )  # fmt: skip


async def test_a_site_that_catches_up_says_how_far_behind_it_is(world: Recorded) -> None:
    """It was told to be up to date, for of its own row nobody asked."""
    daemon = world.daemon

    def shown() -> tuple[int | None, bool | None]:
        status = daemon.view.status()
        return status.rounds_behind, status.took_part_last_round

    assert shown() == (None, None), "it has met nobody yet"
    daemon.lifecycle.enter("catching_up")
    assert shown() == (None, None), "nor has anybody said where the run is"
    newer = replace(record_of(daemon.run_id, 1, "training"), chain_height=7)
    daemon.membership.on_record(newer, is_own_word=True)
    assert shown() == (7, None)
    daemon.lifecycle.enter("training")
    for contributors, took_part in (({daemon.me, PEER}, True), ({PEER}, False)):
        daemon.ledger.chain = replace(daemon.ledger.chain, recent=(frozenset(contributors),))
        assert shown() == (0, took_part), "one more entry of others is on its way at any time"


async def test_pause_before_training_holds_until_resume(world: Recorded) -> None:
    world.control.pause("not yet")
    assert world.daemon.lifecycle.state == "starting"
    world.daemon.lifecycle.enter("training")
    assert world.daemon.lifecycle.state == "paused"
    world.daemon.lifecycle.enter("leaving")
    with pytest.raises(CommandRefused, match="leaving"):
        world.control.pause("too late")


async def test_who_trains_nothing_anyhow_has_nothing_to_pause(world: Recorded) -> None:
    for said in ("follows", "evicted"):
        setattr(world.daemon.lifecycle, said, f"it {said}")
        with pytest.raises(CommandRefused, match=f"it {said}"):
            world.control.pause("a disk is exchanged")
    assert world.told() == [] and not world.daemon.lifecycle.is_paused


async def test_other_commands(world: Recorded) -> None:
    control, daemon = world.control, world.daemon
    with pytest.raises(CommandRefused, match="not loaded"):
        control.snapshot()
    assert "debug" in control.set_log_level("debug") and daemon.opened.events.level == "debug"
    with pytest.raises(CommandRefused, match="no other site is live"):
        await control.reach()
    assert f"`dilocoxd run {daemon.opened.run_dir.path}`" in control.leave(), "a command that can be copied"
    assert world.stopped == ["asked for over the API"]
    assert daemon.snapshots.request(3) and not daemon.snapshots.request(4)


async def test_alerts_are_raised_once_and_cleared(world: Recorded) -> None:
    driver, daemon = world.daemon.alert_driver, world.daemon
    status = daemon.view.status()
    full = Seen(status, [], 10, 1000, 0)
    driver.settle(full, 100.0)
    driver.settle(full, 105.0)
    assert world.told() == ["alert.raised"] and list(daemon.journal.alerts) == ["disk_low"]
    driver.settle(Seen(status, [], 10**12, 10**12, 0), 110.0)
    assert world.told() == ["alert.raised", "alert.cleared"] and not daemon.journal.alerts


class Switch:
    """A site that remembers its pauses."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def pause(self, reason: str) -> None:
        self.reasons.append(reason)

    def resume(self) -> None:
        self.reasons.append("")


def test_last_one_to_let_go_ends_the_pause() -> None:
    switch = Switch()
    pauses = Pauses(switch)
    pauses.hold("operator", "lunch")
    pauses.hold("recovery", "catching up")
    pauses.release("operator")
    pauses.release("nobody")
    pauses.release("recovery")
    assert switch.reasons == ["lunch", "catching up", "catching up", ""]


def test_token_is_made_once_and_kept_secret(tmp_path: Path) -> None:
    path = tmp_path / "api.token"
    token = load_or_create_token(path)
    assert len(token) >= 40 and path.stat().st_mode & 0o777 == 0o600
    assert load_or_create_token(path) == token
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_or_create_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="no token"):
        load_or_create_token(path)
    with pytest.raises(ConfigError, match="cannot be made"):
        load_or_create_token(tmp_path / "no" / "folder")


def test_secrets_are_masked() -> None:
    shown = masked({"a": {"api_token": "x", "token_file": "api.token"}, "b": ["https://u:p@h/x", 3]})
    assert shown == {"a": {"api_token": "***", "token_file": "api.token"}, "b": ["https://***@h/x", 3]}


async def test_dial_back_tries_only_the_askers_own_addresses() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    now = [0.0]
    records = {PEER: [f"/ip4/127.0.0.1/tcp/{port}", "/ip4/127.0.0.1/tcp/1"] + ["/ip4/127.0.0.1/tcp/2"] * 9}

    async def talks_from(peer: PeerId) -> tuple[str, ...]:
        return ("127.0.0.1",)

    dial_back = DialBack(lambda peer: records.get(peer, []), talks_from, lambda: now[0])
    rows = reach.checked(await dial_back.answer(PEER))
    assert [row.ok for row in rows] == [True, False, False, False]
    assert reach.checked(await dial_back.answer(PeerId("QmOther"))) == ()
    with pytest.raises(WireError, match="one try per"):
        await dial_back.answer(PEER)
    now[0] += reach.EVERY_S
    assert await dial_back.answer(PEER)
    server.close()


@pytest.mark.parametrize("host", ["/ip4/127.0.0.1", "/ip4/10.0.0.1", "/ip6/::1", "/dns4/localhost"])
async def test_dial_back_says_nothing_about_places_that_the_asker_does_not_talk_from(host: str) -> None:
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        async def talks_from(peer: PeerId) -> tuple[str, ...]:
            return ("127.0.0.9",)

        asked = DialBack(lambda _peer: [f"{host}/tcp/{port}", f"{host}/tcp/1"], talks_from, lambda: 0.0)
        open_port, closed_port, own = reach.checked(await asked.answer(PEER))
    assert not open_port.ok
    assert (own.address, own.ok) == (f"/ip4/127.0.0.9/tcp/{port}", False), "there the asker itself would answer"
    assert open_port.error == closed_port.error == reach.OTHER_PLACE


async def test_dial_back_tries_where_the_asker_is_seen_at_the_port_that_it_names() -> None:
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        async def talks_from(peer: PeerId) -> tuple[str, ...]:
            return ("127.0.0.1", "::1", "127.0.0.8", "127.0.0.9")

        named = [f"/ip4/192.168.1.{n}/tcp/{port}" for n in range(9)]
        rows = reach.checked(await DialBack(lambda _peer: named, talks_from, lambda: 0.0).answer(PEER))
    assert [(row.address, row.ok) for row in rows] == [
        *((address, False) for address in named[:2]),
        (f"/ip4/127.0.0.1/tcp/{port}", True),
        (f"/ip4/127.0.0.8/tcp/{port}", False),
    ]
    assert [row.error for row in rows[:2]] == [reach.OTHER_PLACE] * 2
    relayed = [f"/ip4/10.0.0.9/tcp/1/p2p/{PEER}/p2p-circuit"]
    assert reach.seen_addresses(relayed, {"127.0.0.1"}) == [], "no port is known to be the asker's"


async def test_answers_of_peers_may_be_anything() -> None:
    answers: dict[str, bytes | Exception] = {
        "a": PeerError("gone"), "b": b"{", "c": b'[{"address": 1}]', "d": b"[" * 5000, "e": b"{}", "f": b"[1,2,3,4,5]",
    }  # fmt: skip

    async def fetch(peer: str, resource: str, *, bytes_max: int) -> bytes:
        answer = answers[peer]
        if isinstance(answer, Exception):
            raise answer
        return answer

    for peers in ("abc", "def"):
        with pytest.raises(CommandRefused, match=f"{peers[0]}: "):
            await ask_peers([PeerId(peer) for peer in peers], fetch)
