"""What a daemon answers commands and requests that it does not carry out: asked, and asked again as it says."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import torch

from dilocoxd.answers.members import Member
from dilocoxd.answers.rounds import LogEntry, RoundRow
from dilocoxd.answers.site import CommandDone, ProfileStatus
from dilocoxd.cli.run_dir.admission import use_invite
from dilocoxd.daemon.control import DaemonControl
from dilocoxd.ids import PeerId
from dilocoxd.machines.admission.authority_book import SIBLINGS_MAX
from dilocoxd.machines.admission.certificates import Authorities, changed, revoked
from dilocoxd.machines.admission.eviction import WINDOW_ENTRIES
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.machines.phase.settings import StartingPoint
from dilocoxd.swarm.discovery.admissions import VOTES_OF_ONE
from dilocoxd.swarm.discovery.identity import load_or_create
from dilocoxd.swarm.streams.budget import Budget
from dilocoxd.wire.admission import RevocationTerms
from dilocoxd.wire.authorities import AuthorityChange, AuthorityTerms, change_hash
from dilocoxd.wire.codec import encode_struct
from dilocoxd.wire.join_link import read_link
from tests.remedies.refused.rooms.standing import KEY, Standing
from tests.remedies.refused.rooms.told import answered, commanded, says
from tests.remedies.test_findings import invoke
from tests.unit.api.serving import TOKEN, served
from tests.unit.daemon.members.test_authority_commands import B, C, made as authorities_of
from tests.unit.daemon.members.test_vote_command import made
from tests.unit.machines.admission.test_authorities import FIRST, NEW, NEXT as THIRD, OLD, terms_after, votes
from tests.unit.machines.admission.test_eviction import AUTHORITIES, AUTHORITY, RUN, X

OTHER: Final = "QmV3nFQT4Rz4oTBvXxPZrp8RV3iQWbyZAgNPJX42n7s"
NEXT: Final = SigningKey(b"n" * 32)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    with Standing(tmp_path_factory.mktemp("standing")) as one:
        yield one


def control(site: Standing, name: str, **body: str | int) -> CommandDone:
    return site.client().ask(f"/v1/control/{name}", CommandDone, body)


async def pause(**headers: str) -> tuple[int, dict[str, str]]:
    """Status and answer of a daemon that is asked to pause."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    async with served() as api:
        answer = await api.ask("/v1/control/pause", "POST", token=TOKEN, data=b'{"reason": "a move"}', headers=named)
        assert (answer.status == 200) == (api.control.asked == [("pause", "a move")])
        return answer.status, answer.body


async def test_bodies_of_commands() -> None:
    status, problem = await pause(Content_Type="application/json", Content_Encoding="gzip")
    assert status == 415
    says("api/commands.py", "send the body as it is, without Content-Encoding", problem["detail"])
    status, problem = await pause(Content_Type="text/plain")
    assert status == 415
    says("api/commands.py", "send the body as application/json", problem["detail"])
    assert (await pause(Content_Type="application/json"))[0] == 200


def test_a_round_of_an_earlier_life(site: Standing) -> None:
    """What it was like only the daemon knew that took part; what came of it is in the log."""
    with answered("api/queries.py", "this daemon knows nothing of round VALUE; see /v1/log"):
        site.client().ask("/v1/rounds/1", RoundRow)
    assert [row.round for row in site.client().ask("/v1/log", list[LogEntry])] == [1, 0]


def test_streams_of_events(tmp_path: Path) -> None:
    site = Standing(tmp_path)
    invoke("config", "set", site.run, "api.streams_max=1")
    with site:
        with answered("api/stream.py", "is none of ours; leave it out"):
            site.client().lines("/v1/events?last_event_id=what")
        with site.client().lines("/v1/events") as stream:
            assert stream.readline()
            with answered("api/stream.py", "close one, or raise api.streams_max in site.toml"):
                site.client().lines("/v1/events")
    invoke("config", "set", site.run, "api.streams_max=2")
    with site, site.client().lines("/v1/events"), site.client().lines("/v1/events") as second:
        assert second.readline()


def test_commands_that_come_too_early(site: Standing) -> None:
    """The shared state is loaded, then the other snapshot taken up; and the command is given again."""
    daemon, heights = site.daemon, [None, 1]
    parts = replace(daemon.control_parts(), loaded_height=lambda: heights[0])
    early = DaemonControl(parts, lambda reason: None)
    with commanded("daemon/control.py", "the shared state is not loaded yet; try again later"):
        early.snapshot()
    heights.pop(0)
    assert daemon.snapshots.request(0)
    with commanded("daemon/control.py", "another snapshot is about to be written; try again later"):
        early.snapshot()

    async def written() -> None:
        task = asyncio.create_task(daemon.snapshots.run(daemon.site, daemon.log))
        while daemon.snapshots._wanted.full():
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    site.do(written())
    assert "state 1 is being written" in early.snapshot()


def test_a_profile_before_there_are_steps_and_beside_another(site: Standing) -> None:
    daemon = site.daemon
    daemon.lifecycle.enter("preparing", "the trainers to start")
    with answered("daemon/control.py", "so there is no inner step to record; try again later"):
        invoke("profile", site.run)
    daemon.site.phase_s = 1e6  # type: ignore[attr-defined]
    site.do(daemon.site.begin(StartingPoint()))
    daemon.lifecycle.enter("training")
    control(site, "profile", steps=2)
    with answered("daemon/control.py", "a profile is being recorded already (VALUE); wait for it"):
        invoke("profile", site.run)
    daemon.site.shown_profile = ProfileStatus(state="written")  # type: ignore[attr-defined]
    assert control(site, "profile", steps=2).ok


async def test_a_profile_of_a_loop_of_ones_own(site: Standing) -> None:
    its_loop = DaemonControl(replace(site.daemon.control_parts(), has_own_loop=True), lambda reason: None)
    with commanded("daemon/control.py", "use torch.profiler in that loop"):
        await its_loop.profile(2)
    module = torch.nn.Linear(4, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module(torch.ones(2, 4)).sum().backward()
    assert any("addmm" in row.key for row in profile.key_averages())


def test_a_text_of_a_daemon_that_leaves(site: Standing) -> None:
    site.daemon.lifecycle.enter("leaving")
    with answered("daemon/control.py", "use `dilocoxd generate RUN_DIR`"):
        control(site, "sample", prompt="Number")
    assert invoke("generate", site.run, "--prompt", "Number", "--max-tokens", "2").output.strip()


def change_of(before: Authorities, by: SigningKey, key: SigningKey) -> AuthorityChange:
    terms = AuthorityTerms(before.run, before.number + 1, before.listed, (key.public,), 1, 0)
    return changed(terms, before, {0: by})


def listed(change: AuthorityChange) -> Authorities:
    terms = change.terms
    return Authorities(terms.run, terms.keys, terms.threshold, terms.number, change_hash(terms))


def test_changes_of_the_authorities_that_do_not_follow(tmp_path: Path) -> None:
    with Standing(tmp_path) as site:
        first = Authorities(site.run_dir.load()[0].sha256(), (KEY.public,))
        keys = [SigningKey(bytes([number]) * 32) for number in range(1, SIBLINGS_MAX + 2)]
        *changes, last = sorted((change_of(first, KEY, key) for key in keys), key=lambda one: change_hash(one.terms))
        (best, *others) = changes
        (key,) = (key for key in keys if key.public in best.terms.keys)
        second = change_of(listed(best), key, NEXT)

        def bring(change: AuthorityChange) -> str:
            return control(site, "change-authorities", change=encode_struct(change).hex()).text

        with answered("daemon/peers/authorities.py", "bring the change that made it first"):
            bring(second)
        assert "list 1 of the authorities is in force" in bring(best)
        assert "list 2 of the authorities is in force" in bring(second)
        for other in others:
            with answered("daemon/peers/authorities.py", "another change with this number goes before it; see"):
                bring(other)
        with answered("daemon/peers/authorities.py", "with this number go before it; see `dilocoxd authority show`"):
            bring(last)
        shown = invoke("authority", "show", site.run).output
        assert shown.count(" lost ") == len(others) and change_hash(best.terms).hex()[:12] in shown
        assert change_hash(last.terms).hex()[:12] not in shown and NEXT.public.hex()[:16] in shown


def test_a_vote_against_nobody(site: Standing) -> None:
    link = read_link(invoke("invite", site.run).output.split()[-1])
    assert link.invite is not None and site.daemon.swarm.admissions is not None
    proof = use_invite(link.invite, site.run_dir.load()[0].sha256(), PeerId(OTHER))
    site.daemon.swarm.admissions.book.take_in(proof, PeerId(OTHER), 0)
    with answered("daemon/peers/members.py", "is no other member of the run; see `dilocoxd members`"):
        control(site, "vote-eviction", peer_id="QmNobody")
    assert OTHER in invoke("members", "--wide", site.run).output
    (other,) = [row for row in site.client().ask("/v1/members", list[Member]) if row.peer_id == OTHER]
    assert "is evicted" in invoke("evict", other.name, site.run).output


def test_a_member_that_votes_too_often(tmp_path: Path) -> None:
    me, clock = load_or_create(tmp_path / "identity.key"), [0.0]
    budget = Budget(lambda: clock[0], each=VOTES_OF_ONE)
    assert budget.take(me.peer_id, VOTES_OF_ONE.burst), "it has voted so often already"
    members, _ = made(me, [(me.peer_id, X)] * 30, is_in_time=budget.take)
    with commanded("daemon/peers/members.py", "repeat it in a few minutes, or ask an authority"):
        members.vote_eviction(X)
    clock[0] += 120
    assert "has voted to evict X" in members.vote_eviction(X)


def test_a_member_whose_vote_does_not_count(tmp_path: Path) -> None:
    me = load_or_create(tmp_path / "identity.key")
    groups: list[tuple[PeerId, ...]] = [(me.peer_id, X), *[(B, X)] * WINDOW_ENTRIES]
    members, _ = made(me, groups)
    with commanded("daemon/peers/members.py", "ask another member, or an authority"):
        members.vote_eviction(X)
    revocation = revoked(RevocationTerms(RUN, X, 7), AUTHORITIES, {0: AUTHORITY})
    assert "X is evicted" in members.evict(encode_struct(revocation).hex())


def test_votes_for_other_authorities_that_are_not_taken(tmp_path: Path) -> None:
    me, clock = load_or_create(tmp_path / "identity.key"), [0.0]
    budget = Budget(lambda: clock[0], each=VOTES_OF_ONE)
    authorities, chain, _ = authorities_of(me, tmp_path, B, C, is_in_time=budget.take)
    terms = terms_after(FIRST, NEW)
    following = terms_after(listed(changed(terms, FIRST, {0: OLD})), THIRD)
    with commanded(
        "daemon/peers/authorities.py", "the list before it is not known here; see `dilocoxd authority show`"
    ):
        authorities.vote(encode_struct(following).hex())
    assert [row.number for row in authorities.shown()] == [0]
    assert budget.take(me.peer_id, VOTES_OF_ONE.burst), "it has voted so often already"
    with commanded("daemon/peers/authorities.py", "repeat it in a minute"):
        authorities.vote(encode_struct(terms).hex())
    clock[0] += 60
    assert "1 of 2 needed votes" in authorities.vote(encode_struct(terms).hex())
    authorities.swarm.decisions.change_authorities(votes(terms, chain, "BC"))
    clock[0] += 60
    assert "1 of 2 needed votes" in authorities.vote(encode_struct(following).hex()), "that list is known now"


def test_a_vote_for_authorities_that_members_have_decided_for(tmp_path: Path) -> None:
    authorities, chain, _ = authorities_of(load_or_create(tmp_path / "identity.key"), tmp_path, B, C)
    terms = terms_after(FIRST, NEW)
    authorities.swarm.decisions.change_authorities(votes(terms, chain, "BC"))
    with commanded("daemon/peers/authorities.py", "members have decided for this list already; see"):
        authorities.vote(encode_struct(terms).hex())
    row = authorities.shown()[-1]
    assert (row.state, row.decided_by, row.keys) == ("in force", "members", (NEW.public.hex(),))


def test_a_vote_for_authorities_that_does_not_count(tmp_path: Path) -> None:
    me, other = (load_or_create(tmp_path / name) for name in ("one.key", "other.key"))
    authorities, chain, _ = authorities_of(me, tmp_path, B, C)
    chain.of_entry = lambda index: (other.peer_id, B, C)  # type: ignore[method-assign]
    chain.last_entry = lambda peer: chain.height - 1  # type: ignore[method-assign]
    text = encode_struct(terms_after(FIRST, NEW)).hex()
    with commanded("daemon/peers/authorities.py", "not count; ask another member"):
        authorities.vote(text)
    assert "1 of 2 needed votes" in replace(authorities, identity=other).vote(text)


def test_a_vote_for_authorities_in_a_run_of_two(tmp_path: Path) -> None:
    me = load_or_create(tmp_path / "identity.key")
    authorities, chain, _ = authorities_of(me, tmp_path, B)
    text = encode_struct(terms_after(FIRST, NEW)).hex()
    with commanded("daemon/peers/authorities.py", "have, or go on in a new run of your own, which has a new key"):
        authorities.vote(text)
    chain.of_entry = lambda index: (me.peer_id, B, C)  # type: ignore[method-assign]
    assert "1 of 2 needed votes" in authorities.vote(text)
