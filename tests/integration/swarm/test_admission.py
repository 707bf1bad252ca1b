"""Who is let in: members, visitors, strangers, and those that were evicted (protocol M3, M4, M5, M7; D9)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import ConfigError, PeerError
from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.admission.certificates import Authorities, admit, certified, changed, revoked
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.store.admission import write_authorities
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.discovery.bootstrap import Access, find_manifest
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.swarm.streams.streams import PROTOCOL_CALL, unix_ms
from dilocoxd.telemetry.catalogue import AuthoritiesChanged
from dilocoxd.wire.admission import (
    InviteTerms,
    MembershipProof,
    MemberVote,
    Revocation,
    RevocationTerms,
    eviction_text,
)
from dilocoxd.wire.authorities import AuthorityTerms, change_hash
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.entry import Signature
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, PROTOCOL_MAJOR, Hello, Leaving, Records
from tests.integration.swarm.members import Member, a_manifest, running, until_all_know_all
from tests.integration.swarm.sites import start_site, until

pytestmark = pytest.mark.processes

AUTHORITY, INVITE, FORGER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
MANIFEST = a_manifest("admitted")
AUTHORITIES = Authorities(MANIFEST.sha256(), (AUTHORITY.public,))
HOUR_MS = 3_600_000
PATIENCE_S = 120


def proof(peer: str, *, key: SigningKey = AUTHORITY, **changes: Any) -> MembershipProof:
    fields = {
        "run": MANIFEST.sha256(), "serial": 7, "invite_key": INVITE.public, "not_after_ms": unix_ms() + HOUR_MS,
        "uses": 9, "role": "contribute", "authorities": MANIFEST.sha256(),
    }  # fmt: skip
    terms = InviteTerms(**{**fields, **changes})
    return admit(certified(terms, AUTHORITIES, {0: key}), INVITE, peer)  # type: ignore[arg-type]


def member(folder: Path, *bootstrap: Member, **changes: Any) -> Member:
    folder.mkdir(parents=True, exist_ok=True)
    key = identity.load_or_create(folder / "identity.key")
    return Member(
        folder,
        MANIFEST,
        bootstrap=tuple(one.swarm.join_address() for one in bootstrap),
        authorities=AUTHORITIES,
        membership=encode_struct(proof(key.peer_id, **changes)),
        members_json=folder / "members.json",
    )


def eviction(of: Member) -> Revocation:
    """By the authority, of who came by invite 9."""
    return revoked(RevocationTerms(MANIFEST.sha256(), of.peer_id, 9), AUTHORITIES, {0: AUTHORITY})


async def test_members_meet_and_are_remembered_over_a_restart(tmp_path: Path) -> None:
    a = member(tmp_path / "a")
    async with running(a):
        b = member(tmp_path / "b", a)
        async with running(b):
            await until_all_know_all(a, b)
            await until(lambda: bool(a.records) and bool(b.records), "records of members are told")
    again = member(tmp_path / "a")
    async with running(again):
        assert again.swarm.doors.is_member(b.peer_id)


async def test_stranger_gets_a_bare_hello_and_is_disconnected(tmp_path: Path) -> None:
    a = member(tmp_path / "a")
    async with running(a):
        stranger = await start_site(tmp_path / "s", run_id=MANIFEST.run_id)
        try:
            await stranger.node.connect(a.peer_id, [a.swarm.join_address()])
            stream = await stranger.gate.open(a.peer_id, "/dilocoxd/hello", record=b"")
            answer = PEER_MESSAGES.decode((await stream.read(FrameKind.HELLO)).payload)
            stream.close()
            assert isinstance(answer, Hello) and answer.run_id == MANIFEST.run_id
            assert (answer.record, answer.membership) == (b"", b"")
            call = await stranger.gate.open(a.peer_id, PROTOCOL_CALL)
            await call.write(FrameKind.CALL, PEER_MESSAGES.encode(Records((), True)))
            with pytest.raises(Refused) as caught:
                await call.read(FrameKind.REPLY)
            call.close()
            assert caught.value.code == "not_admitted"
            assert not await stranger.node.merge_dht(a.peer_id)  # the DHT is silent too
            async with asyncio.timeout(20):
                while a.peer_id in await stranger.node.connections():
                    await asyncio.sleep(0.2)
            assert a.records == [] and a.swarm.contacts.in_touch == frozenset()
        finally:
            await stranger.node.shutdown()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"not_after_ms": 1_000}, "the invite has expired"),
        ({"key": FORGER}, "the signature of authority number 0 is wrong"),
        ({"run": bytes(32)}, "the invite belongs to another run"),
        ({"serial": 8, "uses": 1}, "the invite was for 1 site and has let in 1"),
    ],
)
async def test_invite_that_is_no_good_is_refused_with_one_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    a = member(tmp_path / "a", serial=8, uses=1)
    a.swarm.doors.judge(
        a.peer_id, Hello(PROTOCOL_MAJOR, 0, MANIFEST.run_id, 0, b"r", a.swarm.doors.own, 0), unix_ms(), 0.0
    )
    async with running(a):
        key = identity.load_or_create(tmp_path / "s" / "identity.key")
        shown = encode_struct(proof(key.peer_id, **changes))
        with pytest.raises(ConfigError, match=sentence):
            await find_manifest(Access((a.swarm.join_address(),), PATIENCE_S, lambda line: None, key.path, shown))
        with pytest.raises(ConfigError, match="this run admits sites by invite"):
            await find_manifest(Access((a.swarm.join_address(),), PATIENCE_S, lambda line: None))


async def test_visitor_reads_the_manifest_and_uses_nothing_up(tmp_path: Path) -> None:
    a = member(tmp_path / "a")
    async with running(a):
        for name in ("v", "w"):
            key = identity.load_or_create(tmp_path / name / "identity.key")
            shown = encode_struct(proof(key.peer_id, serial=8, uses=1))
            found = await find_manifest(
                Access((a.swarm.join_address(),), PATIENCE_S, lambda line: None, key.path, shown)
            )
            assert found == MANIFEST
            assert not a.swarm.doors.is_member(key.peer_id)


async def test_evicted_member_is_out_everywhere_and_the_others_go_on(tmp_path: Path) -> None:
    a = member(tmp_path / "a")
    async with running(a):
        b, c = member(tmp_path / "b", a), member(tmp_path / "c", a, serial=9)
        async with running(b, c):
            await until_all_know_all(a, b, c)
            revocation = eviction(c)
            assert a.swarm.decisions.evict(revocation) and not a.swarm.decisions.evict(revocation)
            await until(lambda: a.evicted == b.evicted == [c.peer_id], "the news reach b")
            await until(lambda: c.peer_id not in a.swarm.contacts.in_touch | b.swarm.contacts.in_touch, "c is out")
            await until(
                lambda: any("evicted from the run" in str(event) for event in c.events), "c is told why it is out"
            )
            a.swarm.send(b.peer_id, Leaving(1, "still here"))  # type: ignore[arg-type]
            await until(lambda: len(b.messages) == 1, "a and b go on")
            with pytest.raises(PeerError):
                await c.swarm.fetch_bytes(a.peer_id, "manifest", bytes_max=1 << 20)
    again = member(tmp_path / "a")
    async with running(again):
        assert again.swarm.doors.is_evicted(c.peer_id)


async def test_who_says_hello_again_is_told_nothing_anew_and_who_starts_again_is_told_all(tmp_path: Path) -> None:
    """A member could else have MB queued by each hello of some hundred bytes."""
    a = member(tmp_path / "a")
    async with running(a):
        told: list[PeerId] = []
        send = a.swarm.decisions.send

        def note(peer: PeerId, news: Any) -> None:
            told.append(peer)
            send(peer, news)

        a.swarm.decisions.send = note
        gone = identity.load_or_create(tmp_path / "gone.key").peer_id
        assert a.swarm.decisions.evict(
            revoked(RevocationTerms(MANIFEST.sha256(), gone, 9), AUTHORITIES, {0: AUTHORITY})
        )
        first = member(tmp_path / "b", a)
        async with running(first):
            await until(lambda: bool(first.swarm.doors.book and first.swarm.doors.book.revocations), "all is told")
            for _ in range(10):
                assert await first.swarm.probe(a.peer_id)
            assert told == [first.peer_id]
        again = member(tmp_path / "b", a)
        assert again.swarm.admissions is not None
        (tmp_path / "b" / "members.json").unlink()  # it has forgotten all
        async with running(again):
            await until(lambda: bool(again.swarm.admissions and again.swarm.admissions.book.revocations), "told again")
            assert told == 2 * [first.peer_id]


async def test_records_of_members_are_stored_with_nobody_who_was_evicted(tmp_path: Path) -> None:
    a = member(tmp_path / "a")
    async with running(a):
        b, c = member(tmp_path / "b", a), member(tmp_path / "c", a, serial=9)
        async with running(b, c):
            await until_all_know_all(a, b, c)

            async def store_a_new_one() -> bytes:
                await asyncio.sleep(0.002)  # the records of two milliseconds are two
                a.swarm.gossip.publish()
                record = a.swarm.book.data(a.peer_id)
                assert await a.swarm.node.publish_hint(a.peer_id, record, ttl_s=30)
                return record

            assert await store_a_new_one() in await c.swarm.node.find_hints()
            assert a.swarm.decisions.evict(eviction(c))
            await until(lambda: a.evicted == b.evicted == [c.peer_id], "the news reach b")
            record = await store_a_new_one()
            assert record in await b.swarm.node.find_hints()
            assert record not in await c.swarm.node.find_hints()


async def test_who_is_turned_away_notices_though_it_saw_no_connection_end(tmp_path: Path) -> None:
    """p2pd may be connected again before we look, and then nothing but refusals tells that we are out."""
    a = member(tmp_path / "a")
    async with running(a):
        c = member(tmp_path / "c", a, serial=9)
        async with running(c):
            await until_all_know_all(a, c)
            ends = await c.swarm.node.connections()

            async def connections() -> dict[PeerId, Any]:
                return ends

            c.swarm.node.connections = connections  # type: ignore[method-assign]
            assert a.swarm.decisions.evict(eviction(c))
            await until(lambda: any("evicted from the run" in str(event) for event in c.events), "c is told")


async def test_member_is_heard_though_its_message_comes_before_its_hello_is_answered(tmp_path: Path) -> None:
    a, b = member(tmp_path / "a"), member(tmp_path / "b")
    async with running(a, b):
        await a.swarm.node.connect(b.peer_id, [b.swarm.join_address()])
        a.swarm.send(b.peer_id, Leaving(1, "heard"))  # type: ignore[arg-type]
        await until(lambda: [message.reason for _, message in b.messages] == ["heard"], "the first message", 30)


NEW_KEY = SigningKey(b"\x04" * 32)


async def test_site_learns_other_authorities_from_whom_they_admitted(tmp_path: Path) -> None:
    run = MANIFEST.sha256()
    terms = AuthorityTerms(run, 1, run, (NEW_KEY.public,), 1, 0)
    change, listed = changed(terms, AUTHORITIES, {0: AUTHORITY}), change_hash(terms)
    a = member(tmp_path / "a")
    async with running(a):
        (tmp_path / "b").mkdir()
        write_authorities(tmp_path / "b" / "members.json", [change], [listed])
        b = member(tmp_path / "b", a, key=NEW_KEY, authorities=listed)
        async with running(b):
            await until_all_know_all(a, b)
            assert a.swarm.admissions is not None
            assert a.swarm.admissions.book.authorities.now.number == 1
            assert any(isinstance(event, AuthoritiesChanged) for event in a.events)
            assert not a.swarm.decisions.change_authorities(change), "it was told already"
    again = member(tmp_path / "a")
    async with running(again):
        assert again.swarm.admissions is not None
        assert again.swarm.admissions.book.authorities.now.number == 1


class TwentyEntries:
    """A chain to which these peers contributed."""

    height = 20

    def __init__(self, *members: Member) -> None:
        self.group = tuple(member.peer_id for member in members)

    def hash_at(self, height: int) -> Digest | None:
        return Digest(bytes([height]) * 32) if height <= self.height else None

    def of_entry(self, index: int) -> tuple[PeerId, ...]:
        return self.group

    def last_entry(self, peer: PeerId) -> int | None:
        return self.height - 1 if peer in self.group else None


async def test_members_evict_one_of_them_without_an_authority(tmp_path: Path) -> None:
    a = member(tmp_path / "a")
    async with running(a):
        b, c = member(tmp_path / "b", a), member(tmp_path / "c", a, serial=9)
        chain = TwentyEntries(a, b, c)
        async with running(b, c):
            await until_all_know_all(a, b, c)
            terms = RevocationTerms(MANIFEST.sha256(), c.peer_id, 9)
            for one in (a, b):
                assert one.swarm.admissions is not None
                one.swarm.admissions.follow(chain)
            for voter in (a, b):
                assert not a.evicted + b.evicted, "one vote of three is not enough"
                key = identity.load(voter.folder / "identity.key")
                text = eviction_text(terms, 20, chain.hash_at(20) or b"")
                vote = MemberVote(key.peer_id, 20, bytes([20]) * 32, Signature(key.public_key_der, key.sign(text)))
                assert voter.swarm.decisions.evict(Revocation(terms, (), (vote,)))
            await until(lambda: a.evicted == b.evicted == [c.peer_id], "both count two votes")
            await until(lambda: c.peer_id not in a.swarm.contacts.in_touch | b.swarm.contacts.in_touch, "c is out")
    again = member(tmp_path / "a")
    async with running(again):
        assert again.swarm.doors.is_evicted(c.peer_id), "a restart forgets no decision"
        newcomer = member(tmp_path / "d", again)
        async with running(newcomer):
            await until_all_know_all(again, newcomer)
            assert newcomer.swarm.admissions is not None
            await until(lambda: newcomer.swarm.admissions.book.has_votes, "it is told before it has the chain")
            newcomer.swarm.admissions.follow(chain)
            assert newcomer.swarm.doors.is_evicted(c.peer_id)
