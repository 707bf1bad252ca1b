"""The whole network part: joining, gossip, healing, restarts, goodbye."""

import asyncio
import functools
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery import gossip
from dilocoxd.swarm.p2pd import supervisor
from dilocoxd.telemetry.catalogue import WorkerDied, WorkerStarted
from dilocoxd.wire.messages import Leaving
from tests.integration.swarm.members import Member, a_manifest, running, until_all_know_all
from tests.integration.swarm.sites import dht_size, until

pytestmark = pytest.mark.processes


async def test_newcomers_join_through_any_member_and_learn_everybody(tmp_path: Path) -> None:
    manifest = a_manifest()
    a = Member(tmp_path / "a", manifest)
    async with running(a):
        b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
        async with running(b):
            c = Member(tmp_path / "c", manifest, bootstrap=(b.swarm.join_address(),))
            async with running(c):
                await until_all_know_all(a, b, c)
                for other in (a, b):
                    told = [is_own_word for record, is_own_word in c.records if record.peer == other.peer_id]
                    assert any(told) or other.peer_id in c.contacts, "c was told of it, and has met it"
                c.swarm.send(a.peer_id, Leaving(1, "hello"))  # type: ignore[arg-type]
                await until(lambda: len(a.messages) == 1, "the message")
                assert a.messages == [(c.peer_id, Leaving(1, "hello"))]  # type: ignore[arg-type]
                assert await a.swarm.probe(c.peer_id, timeout_s=60)
            await until(lambda: a.state_of(c) == "training", "c said goodbye with its last state")
        assert not await a.swarm.probe(b.peer_id, timeout_s=2)


async def test_last_words_reach_the_others(tmp_path: Path) -> None:
    manifest = a_manifest()
    a = Member(tmp_path / "a", manifest)
    async with running(a):
        b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
        async with running(b):
            await until_all_know_all(a, b)
            b.state = "left"
            b.swarm.channel.call = functools.partial(patient, b.swarm.channel.call)  # type: ignore[method-assign]
        await until(lambda: a.state_of(b) == "left", "b's last words")


async def patient(call: Any, peer: PeerId, message: Any, *, timeout_s: float) -> Any:
    """On a busy machine two seconds may be over before a goodbye has arrived."""
    return await call(peer, message, timeout_s=60.0)


async def test_news_travel_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for period in ("HEARTBEAT_S", "EXCHANGE_S", "HINTS_S"):
        monkeypatch.setattr(gossip, period, 3600.0)  # whatever comes now is news
    manifest = a_manifest()
    a = Member(tmp_path / "a", manifest)
    async with running(a):
        b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
        async with running(b):
            await until_all_know_all(a, b)
            b.state = "catching_up"
            b.swarm.announce()
            await until(lambda: a.state_of(b) == "catching_up", "the new state")


async def test_bootstrap_that_restarts_alone_finds_its_swarm(tmp_path: Path) -> None:
    manifest = a_manifest()
    first = Member(tmp_path / "a", manifest)
    b, c = (Member(tmp_path / name, manifest) for name in "bc")
    async with running(b, c):
        async with running(first):
            for other in (b, c):
                other.swarm.contacts._places.file.remember(first.peer_id, (first.swarm.join_address(),), 2**52)
                other.swarm.contacts.try_all_now()
            await until_all_know_all(first, b, c)
        again = Member(tmp_path / "a", manifest)
        assert again.peer_id == first.peer_id
        async with running(again):
            await until_all_know_all(again, b, c)

            def is_new() -> bool:
                record = b.swarm.book.get(again.peer_id)
                return record is not None and record.incarnation == 2

            await until(is_new, "the record of its second life")


async def test_two_swarms_are_healed_into_one_by_one_common_member(tmp_path: Path) -> None:
    manifest = a_manifest()
    a, c = Member(tmp_path / "a", manifest), Member(tmp_path / "c", manifest)
    async with running(a, c):
        b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
        d = Member(tmp_path / "d", manifest, bootstrap=(c.swarm.join_address(),))
        async with running(b, d):
            await until_all_know_all(a, b)
            await until_all_know_all(c, d)
            assert not a.knows(c)
            e = Member(tmp_path / "e", manifest, bootstrap=(b.swarm.join_address(), d.swarm.join_address()))
            async with running(e):
                await until_all_know_all(a, b, c, d, e)
                await until(lambda: all(dht_size(m.swarm.node) == 4 for m in (a, b, c, d, e)), "one DHT")


async def test_p2pd_killed_in_a_running_swarm_comes_back(tmp_path: Path) -> None:
    manifest = a_manifest()
    a = Member(tmp_path / "a", manifest)
    async with running(a):
        b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
        async with running(b):
            await until_all_know_all(a, b)
            for victim in (a, b):
                os.kill(victim.swarm.node.p2pd_pid, signal.SIGKILL)
                await until(lambda v=victim: v.swarm.node.num_starts == 2 and v.swarm.node.is_running, "p2pd again")  # type: ignore[misc]
                await until_all_know_all(a, b)
                kinds = [type(event) for event in victim.events if isinstance(event, WorkerDied | WorkerStarted)]
                assert kinds == [WorkerStarted, WorkerDied, WorkerStarted]


async def test_p2pd_that_hangs_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ASK_EVERY_S", 0.5)
    monkeypatch.setattr(supervisor, "ANSWER_S", 2.0)
    manifest = a_manifest()
    a = Member(tmp_path / "a", manifest)
    async with running(a):
        b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
        async with running(b):
            await until_all_know_all(a, b)
            os.kill(b.swarm.node.p2pd_pid, signal.SIGSTOP)
            await until(lambda: b.swarm.node.num_starts >= 2 and b.swarm.node.is_running, "p2pd again")
            await until_all_know_all(a, b)
            assert await a.swarm.probe(b.peer_id, timeout_s=60)
            died = [event.reason for event in b.events if isinstance(event, WorkerDied)]
            assert died[0] == "it answered nothing for 6 s, and was killed"


async def test_another_run_is_kept_out_and_told_why(tmp_path: Path) -> None:
    a = Member(tmp_path / "a", a_manifest())
    async with running(a):
        stranger = Member(tmp_path / "s", a_manifest("otherrun"), bootstrap=(a.swarm.join_address(),))
        async with running(stranger):
            await until(lambda: any("join" in event.name for event in stranger.events), "the failure is told")
            told = str(next(event for event in stranger.events if "join" in event.name))
            assert "wrong_run" in told
            assert a.swarm.peer_id in told
            assert a.manifest.run_id in told
            assert a.swarm.contacts.in_touch == frozenset()


async def test_lost_counter_of_starts_does_not_make_a_peer_invisible(tmp_path: Path) -> None:
    manifest = a_manifest()
    a = Member(tmp_path / "a", manifest)
    async with running(a):
        for _ in range(3):
            b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
            async with running(b):
                await until_all_know_all(a, b)
        (tmp_path / "b" / "peers.json").unlink()
        b = Member(tmp_path / "b", manifest, bootstrap=(a.swarm.join_address(),))
        async with running(b):
            b.state = "catching_up"

            def is_seen() -> bool:
                record = a.swarm.book.get(b.peer_id)
                return record is not None and record.incarnation == 4 and record.state == "catching_up"

            await until(is_seen, "b's new record outranks its old ones")


async def test_damaged_peers_file_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "peers.json").write_text('{"incarnation": 1, "peers": [{"peer": 7}]}')
    a = Member(tmp_path / "a", a_manifest())
    async with running(a):
        assert a.events[0].name == "input.rejected"
        assert (tmp_path / "a" / "peers.json.bad").exists()


async def test_announced_address_is_what_others_are_told(tmp_path: Path) -> None:
    plain = Member(tmp_path / "a", a_manifest())
    told = f"/ip4/203.0.113.7/tcp/31337/p2p/{plain.peer_id}"
    a = Member(tmp_path / "a", a_manifest(), announce=(told,))
    async with running(a):
        assert a.swarm.join_address() == told
        record = a.swarm.book.get(a.peer_id)
        assert record is not None
        assert record.addresses == ("/ip4/203.0.113.7/tcp/31337",)


async def test_probe_of_a_stranger_is_no(tmp_path: Path) -> None:
    a = Member(tmp_path / "a", a_manifest())
    async with running(a), asyncio.timeout(30):
        assert not await a.swarm.probe(PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"), timeout_s=2)


async def test_address_to_join_by_is_the_public_one_that_peers_confirmed(tmp_path: Path) -> None:
    swarm = Member(tmp_path / "a", a_manifest()).swarm
    swarm._addresses = (f"/ip4/192.168.1.5/tcp/31337/p2p/{swarm.peer_id}",)
    assert swarm.join_address() == swarm.addresses()[0]
    opened = f"/ip4/45.33.7.2/tcp/50175/p2p/{swarm.peer_id}"
    swarm._addresses = (*swarm._addresses, opened)
    assert swarm.join_address() == opened, "the router's, which leads here from everywhere"
    swarm.public = (f"/ip4/45.33.7.1/tcp/31337/p2p/{swarm.peer_id}",)
    assert swarm.join_address() == swarm.public[0]
