"""A branch from a peer is believed only when hashes, votes, caps and phases are right; the heavier branch wins."""

import asyncio
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dilocoxd.daemon.peers.serving import Library, parse_chain, write_chain
from dilocoxd.daemon.recovery.chain_fetch import check_payload, fetch_entries
from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.recovery.branch import Branch, check_branch, is_better
from dilocoxd.machines.recovery.branch_search import BranchSearch
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.swarm.streams.fetch import OnBytes
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.unit.daemon.chain.chain_maker import GENESIS, KEYS, LENGTHS, RUN, base_view, chain, payload_of, signed_by_all

LIMITS = RoundLimits(tokens_max=100, inner_steps_max=100)


def ignored(num_bytes: int) -> None:
    """Nobody wants to know."""


class LibraryClient:
    """Answers fetches from a library in the same process."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.asked: list[str] = []

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int, on_bytes: OnBytes = ignored) -> bytes:
        self.asked.append(resource)
        served = await self._library.open(peer, resource)
        try:
            return os.pread(served.region.fd, served.region.length, served.region.offset)
        finally:
            served.close()


def log_of(path: Path, entries: list[SignedEntry], salt: bytes = b"") -> EntryLog:
    log = EntryLog(path, RUN, GENESIS)
    for signed in entries:
        fd = os.memfd_create("payload")
        os.pwrite(fd, payload_of(signed.entry.round, salt), 0)
        log.append(signed, PayloadSource(fd, 0, LENGTHS))
        os.close(fd)
    return log


async def branch_of(client: LibraryClient, log: EntryLog) -> Branch:
    """What the machine's search finds over the driver's fetches."""
    search = BranchSearch([log.hash_at(height) for height in range(log.height + 1)], 1 << 20)
    while (branch := search.take(await fetch_entries(client, PeerId("B"), search.next_from, ignored))) is None:  # type: ignore[arg-type]
        pass
    return branch


def test_good_branch_passes() -> None:
    check_branch(Branch(0, tuple(chain(4))), base_view(), LIMITS, KEYS)


def test_forged_vote_is_refused() -> None:
    entries = chain(3)
    votes = entries[1].votes
    entries[1] = replace(entries[1], votes=(replace(votes[0], signature=bytes(32)), *votes[1:]))
    with pytest.raises(WireError, match="vote of A"):
        check_branch(Branch(0, tuple(entries)), base_view(), LIMITS, KEYS)


def test_vote_of_an_outsider_is_refused() -> None:
    entries = chain(1)
    entries[0] = replace(entries[0], votes=(*entries[0].votes, replace(entries[0].votes[0], peer=PeerId("Z"))))
    with pytest.raises(WireError, match="vote of Z"):
        check_branch(Branch(0, tuple(entries)), base_view(), LIMITS, KEYS)


def test_entry_that_names_others_than_contributed_to_its_parent_is_refused() -> None:
    """R20.7: 1,024 names of a liar's choice in each entry would be kept and handed on for ever."""
    entries = chain(3)
    entries[2] = signed_by_all(replace(entries[2].entry, parent_voters=(*entries[2].entry.parent_voters, PeerId("Z"))))
    with pytest.raises(WireError, match="entry 2 names others than contributed"):
        check_branch(Branch(0, tuple(entries)), base_view(), LIMITS, KEYS)


def test_claim_over_the_cap_is_refused() -> None:
    with pytest.raises(WireError, match="over the caps"):
        check_branch(Branch(0, tuple(chain(1, tokens=101))), base_view(), LIMITS, KEYS)


def test_entry_that_names_more_than_a_group_holds_is_refused() -> None:
    """TRUST C1: 1,024 invented contributors, each with an offer under a key of its own. R20.6."""
    limits = replace(LIMITS, contributors_max=8)
    check_branch(Branch(0, tuple(chain(1, peers=tuple("ABCDEFGH")))), base_view(), limits, KEYS)
    with pytest.raises(WireError, match="names 9 sites, at most 8"):
        check_branch(Branch(0, tuple(chain(1, peers=tuple("ABCDEFGHI")))), base_view(), limits, KEYS)


def test_contributors_who_offered_nothing_are_refused() -> None:
    """TRUST C1: a lone key names honest peers with as many tokens as it may, and phases up to the last number there is:
    after that nothing of theirs would be counted any more. R25."""
    (honest,) = chain(1, tokens=LIMITS.tokens_max)
    for name in "AB":
        named = tuple(replace(c, phase=PhaseId(2**63 - 1)) if c.peer == name else c for c in honest.entry.contributions)
        entry = replace(honest.entry, contributions=named)
        (vote,) = [vote for vote in signed_by_all(entry).votes if vote.peer != name]
        with pytest.raises(WireError, match=f"names {name}, who did not offer that"):
            check_branch(Branch(0, (SignedEntry(entry, honest.offers, (vote,)),)), base_view(), LIMITS, KEYS)


@pytest.mark.parametrize(("age", "is_refused"), [(LIMITS.contribution_age_max, False), (9, True)])
def test_base_that_is_too_old_is_refused(age: int, is_refused: bool) -> None:
    entries = chain(10)
    entry = entries[9].entry
    aged = tuple(replace(c, base_round=RoundIndex(9 - age)) for c in entry.contributions)
    entries[9] = signed_by_all(replace(entry, contributions=aged))
    try:
        check_branch(Branch(0, tuple(entries)), base_view(), LIMITS, KEYS)
        found = ""
    except WireError as error:
        found = str(error)
    assert bool(found) == is_refused and ("rounds old" in found) == is_refused, found


def test_contribution_counted_twice_is_refused() -> None:
    base = replace(base_view(), last_phases={PeerId("B"): 0})
    with pytest.raises(WireError, match="counts B twice"):
        check_branch(Branch(0, tuple(chain(1))), base, LIMITS, KEYS)


def test_gap_in_the_chain_is_refused() -> None:
    entries = chain(3)
    with pytest.raises(WireError, match="does not continue"):
        check_branch(Branch(0, (entries[0], entries[2])), base_view(), LIMITS, KEYS)


def test_heavier_branch_wins_and_ties_go_to_the_smaller_hash() -> None:
    light, heavy = chain(2, peers=("A",)), chain(1, peers=("A", "B", "C"))
    own = [signed.entry for signed in light]
    assert is_better(Branch(0, tuple(heavy)), own)
    assert not is_better(Branch(0, tuple(light)), [signed.entry for signed in heavy])
    one, two = chain(1, salt=b"1"), chain(1, salt=b"2")
    smaller, larger = sorted((one, two), key=lambda found: entry_hash(found[0].entry))
    assert is_better(Branch(0, tuple(smaller)), [larger[0].entry])
    assert not is_better(Branch(0, tuple(larger)), [smaller[0].entry])
    assert not is_better(Branch(0, ()), own)
    assert is_better(Branch(0, tuple(light)), [])


def test_chain_answer_survives_the_way_and_is_checked(tmp_path: Path) -> None:
    entries = chain(3)
    log = log_of(tmp_path / "log", entries)
    data = write_chain(log, 1)
    assert parse_chain(data, 1) == entries[1:]
    with pytest.raises(WireError, match="place 2"):
        parse_chain(data, 2)
    for cut in (1, 3, len(data) - 1):
        with pytest.raises(WireError):
            parse_chain(data[:cut], 1)


async def test_branch_behind_us_in_front_of_us_and_beside_us(tmp_path: Path) -> None:
    common = chain(20)
    theirs = [*common, *chain(3, peers=("B",), start=20, parent=entry_hash(common[-1].entry), salt=b"x")]
    salted = log_of(tmp_path / "theirs", common)
    for signed in theirs[20:]:
        fd = os.memfd_create("payload")
        os.pwrite(fd, payload_of(signed.entry.round, b"x"), 0)
        salted.append(signed, PayloadSource(fd, 0, LENGTHS))
        os.close(fd)
    client = LibraryClient(Library(b"manifest", salted, tmp_path / "snapshots"))
    behind = log_of(tmp_path / "behind", common[:15])
    branch = await branch_of(client, behind)
    assert (branch.fork, branch.tip) == (15, 23)
    assert client.asked[0] == "chain/15"
    forked = log_of(tmp_path / "forked", [*common, *chain(1, start=20, parent=entry_hash(common[-1].entry))])
    branch = await branch_of(client, forked)
    assert (branch.fork, branch.tip) == (20, 23)
    ahead = log_of(tmp_path / "ahead", chain(40))
    branch = await branch_of(client, ahead)
    assert branch.fork == 20


async def test_chain_from_another_genesis_is_refused(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log", chain(2))
    other = EntryLog(tmp_path / "other", RUN, entry_hash(chain(1)[0].entry))
    client = LibraryClient(Library(b"manifest", log, tmp_path / "snapshots"))
    with pytest.raises(WireError, match="genesis"):
        await branch_of(client, other)


def test_payload_is_bound_by_the_entry() -> None:
    entry = chain(1)[0].entry
    fd = os.memfd_create("payload")
    os.pwrite(fd, payload_of(0), 0)
    check_payload(fd, LENGTHS, entry)
    os.pwrite(fd, b"!", 6)
    with pytest.raises(WireError, match="segment 1"):
        check_payload(fd, LENGTHS, entry)
    os.close(fd)


@pytest.mark.parametrize(
    "name",
    ["", "x", "chain/", "chain/-1", "chain/\u0663", "payload/1/2", "snapshot/1/../../run.toml", "snapshot/1/a.key"],
)
async def test_library_serves_nothing_else(tmp_path: Path, name: str) -> None:
    library = Library(b"manifest", EntryLog(tmp_path / "log", RUN, GENESIS), tmp_path)
    with pytest.raises(WireError) as refused:
        await library.open(PeerId("B"), name)
    assert refused.value.code == "not_found"


@pytest.mark.parametrize("name", ["snapshot/4/index.json", "snapshot/4/anchor.safetensors", "payload/3"])
async def test_answer_about_what_is_not_here_tells_nothing_of_our_disk(tmp_path: Path, name: str) -> None:
    library = Library(b"manifest", EntryLog(tmp_path / "log", RUN, GENESIS), tmp_path)
    with pytest.raises(WireError) as refused:
        await library.open(PeerId("B"), name)
    assert refused.value.code == "not_found" and name in refused.value.detail
    assert str(tmp_path) not in refused.value.detail


async def test_a_file_is_hashed_once_for_all_who_ask_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "4" / "anchor.safetensors"
    file.parent.mkdir()
    file.write_bytes(bytes(range(256)) * 4096)
    library = Library(b"manifest", EntryLog(tmp_path / "log", RUN, GENESIS), tmp_path)
    hashed: list[int] = []
    real = Region.sha256

    async def counted(region: Region) -> bytes:
        hashed.append(region.fd)
        return await real(region)

    monkeypatch.setattr(Region, "sha256", counted)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(library.open(PeerId(name), "snapshot/4/anchor.safetensors")) for name in "BCD"]
    served = [task.result() for task in asked]
    for one in served:
        one.close()
    assert len(hashed) == 1
    assert {one.sha256 for one in served} == {hashlib.sha256(file.read_bytes()).digest()}


def test_branch_that_goes_on_after_the_end_of_the_run_is_refused() -> None:
    limits = replace(LIMITS, stop_after_tokens=40)
    check_branch(Branch(0, tuple(chain(2))), base_view(), limits, KEYS)
    with pytest.raises(WireError, match=r"entry 2 comes after the end of the run \(R24\)"):
        check_branch(Branch(0, tuple(chain(3))), base_view(), limits, KEYS)


def test_chain_must_contain_the_checkpoint_of_the_link() -> None:
    entries = chain(4)
    head = entry_hash(entries[1].entry)
    limits = replace(LIMITS, checkpoint=(2, head))
    check_branch(Branch(0, tuple(entries)), base_view(), limits, KEYS)
    check_branch(Branch(0, tuple(entries[:2])), base_view(), limits, KEYS)
    with pytest.raises(WireError, match="the chain ends before entry 2, which the join link names"):
        check_branch(Branch(0, tuple(entries[:1])), base_view(), limits, KEYS)
    other = replace(LIMITS, checkpoint=(2, Digest(bytes(32))))
    with pytest.raises(WireError, match="at height 2 this is not the chain that the join link names"):
        check_branch(Branch(0, tuple(entries)), base_view(), other, KEYS)
