"""A false result that one site finds: told, shown, summed again by others, voted against; what forged claims cost."""

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dilocoxd.daemon.audit.auditor import Auditor, AuditRules
from dilocoxd.daemon.audit.disproofs import Disproofs
from dilocoxd.daemon.audit.inputs import AuditedEntry, AuditSources
from dilocoxd.daemon.audit.shelf import SHOWN_MAX, ProofShelf
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.peers.serving import Library
from dilocoxd.errors import CommandRefused, PeerError, StoreError, WireError
from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.round.inputs import EntryFalse
from dilocoxd.store.audits import AuditFolders, read_votes, share_name
from dilocoxd.store.log import EntryLog
from dilocoxd.wire.audit import ShareProof, decode_sum_proof
from dilocoxd.wire.entry import Signature, SignedEntry, SignedVote, entry_hash
from dilocoxd.wire.merkle import MerkleTree
from dilocoxd.wire.messages import FalseSum
from tests.unit.daemon.audit.test_auditor import GENESIS, LENGTHS, ME, OTHER, OWNER, RUN, World

TELLER = OTHER


async def at_once(peer: PeerId, resource: str, on_bytes: Callable[[int], None]) -> None:
    """Shares come in no time."""


@dataclass
class Site(World):
    """A site whose log holds one entry; what it tells, and to whom."""

    audited: AuditedEntry = field(init=False)
    told: list[Any] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    bad: list[tuple[PeerId, str, str]] = field(default_factory=list)
    votes: list[tuple[PeerId, int]] = field(default_factory=list)
    shelf: ProofShelf = field(default_factory=ProofShelf)
    asks: Library | None = None
    spoil: Callable[[str, bytes], bytes] = lambda resource, data: data
    pace: Callable[[PeerId, str, Callable[[int], None]], Awaitable[None]] = at_once

    def commit(self, audited: AuditedEntry, voters: tuple[PeerId, ...] = (ME, OTHER, OWNER)) -> None:
        votes = tuple(SignedVote(peer, Attempt(0), 0, Signature(b"k", b"s")) for peer in voters)
        self.log = EntryLog(self.folder / ME / "log", RUN, GENESIS)
        self.log.append_bare(SignedEntry(audited.entry, audited.offers, votes), LENGTHS)
        self.audited = AuditedEntry(audited.entry, audited.offers, audited.owners, votes)

    def evict(self, peer: PeerId, before: RoundIndex) -> str:
        self.votes.append((peer, before))
        return "this site has voted to evict it"

    def broadcast(self, message: Any) -> None:
        self.said.append(message)

    def tell(self, event: Any) -> None:
        self.told.append(event)

    def count_bad(self, peer: PeerId, rule: str, detail: str) -> None:
        self.bad.append((peer, rule, detail))

    def auditor(self, limit_s: float = 0.0) -> Auditor:
        ledger = SimpleNamespace(log=self.log, payloads=PayloadMaps({0: (LENGTHS,)}))
        sources = AuditSources(
            ME, cast(Any, ledger), cast(Any, self), self.shown[ME], AuditFolders(self.folder / ME), 8
        )  # fmt: skip
        book = SimpleNamespace(alert=lambda code, text: self.alerts.append(f"{code}: {text}"))
        disproofs = Disproofs(ME, self.evict, self.log, self.shelf)
        disproofs.outside = self
        return Auditor(
            AuditRules(1.0, limit_s), sources, cast(Any, self.site), cast(Any, book), self.events.append, disproofs
        )

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        if not resource.startswith("proof/"):
            return await super().fetch_bytes(peer, resource, bytes_max=bytes_max)
        data = await self._asked(resource)
        if len(data) > bytes_max:
            raise WireError("too_large", resource)
        return data

    async def fetch_region(
        self, peer: PeerId, resource: str, target: Any, on_bytes: Callable[[int], None] = lambda _: None
    ) -> None:
        if not resource.startswith("proof/"):
            await super().fetch_region(peer, resource, target)
            return
        await self.pace(peer, resource, on_bytes)
        os.pwrite(target.fd, await self._asked(resource), 0)

    async def _asked(self, resource: str) -> bytes:
        if self.asks is None:
            raise PeerError("silent")
        try:
            served = await self.asks.open(ME, resource)
        except WireError as error:
            raise PeerError(f"refused: {error}") from error
        data = os.pread(served.region.fd, served.region.length, served.region.offset)
        served.close()
        return self.spoil(resource, data)


def finder(folder: Path, lie_in: int | None = 1) -> Site:
    site = Site(folder / "finder")
    site.commit(site.entry(lie_in=lie_in))
    return site


def hearer(folder: Path, of: Site, voters: tuple[PeerId, ...] = (ME, OTHER, OWNER)) -> Site:
    site = Site(folder / "hearer")
    site.commit(of.audited, voters)
    site.asks = Library(b"", of.log, of.folder, proofs=of.shelf)
    return site


def finds(site: Site) -> FalseSum:
    asyncio.run(site.auditor().audit(site.audited, 5.0))
    (said,) = site.said
    assert isinstance(said, FalseSum)
    return said


def hears(site: Site, *claims: FalseSum, takes_part: bool = True) -> Auditor:
    """It hears these and looks at them."""

    async def run() -> Auditor:
        auditor = site.auditor()
        if takes_part:
            auditor._owners[entry_hash(site.audited.entry)] = site.audited.owners
        task = asyncio.create_task(auditor._follow_claims())
        for claim in claims:
            auditor.hear(TELLER, claim)
            await asyncio.sleep(0)
            while (auditor._claimed.is_set() or auditor._looks) and not task.done():
                await asyncio.to_thread(time.sleep, 0.01)  # the loop's clock may stand
        assert task.cancel(), task.exception()
        return auditor

    return asyncio.run(run())


def test_who_finds_it_tells_the_others_and_its_own_round_machine_and_votes(tmp_path: Path) -> None:
    site = finder(tmp_path)
    digest = entry_hash(site.audited.entry)
    assert finds(site) == FalseSum(RoundIndex(0), digest, 1)
    assert site.told == [EntryFalse(RoundIndex(0), digest, (OWNER,))]
    assert site.votes == [(OWNER, 0)]
    assert "voted to evict" in site.alerts[0]
    proof = decode_sum_proof(site.shelf.proof(digest, 1), 3)
    for place, share in enumerate(proof.shares):
        assert hashlib.sha256(site.shelf.share(digest, 1, place).read_bytes()).digest() == share.sha256


def test_who_hears_of_it_sums_it_itself_and_shows_it_too(tmp_path: Path) -> None:
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)
    auditor = hears(second, claim, claim)
    assert second.told == [EntryFalse(RoundIndex(0), Digest(claim.entry_hash), (OWNER,))]
    assert second.votes == [(OWNER, 0)] and second.said == [claim]
    (folder,) = second.evidence()
    assert read_votes(folder) == second.audited.votes, "who has the folder alone may have a log without the entry"
    assert OWNER in second.alerts[0] and not second.bad
    assert (auditor.counts.shown, auditor.counts.proofs) == (1, 0), "proofs are what it found by itself"
    assert second.site.num_sums == 2, "a claim that is known is not looked at again"
    assert second.shelf.proof(Digest(claim.entry_hash), 1) == first.shelf.proof(Digest(claim.entry_hash), 1)


@pytest.mark.parametrize(("voters", "takes_part"), [((ME, OTHER), True), ((ME, OTHER, OWNER), False)])
def test_owner_that_did_not_vote_or_is_not_known_is_accused_of_nothing(
    tmp_path: Path, voters: tuple[PeerId, ...], takes_part: bool
) -> None:
    """A coordinator may have proposed another group to it; what it summed is right then, and the entry false."""
    first = finder(tmp_path)
    second = hearer(tmp_path, first, voters)
    hears(second, finds(first), takes_part=takes_part)
    assert second.told == [EntryFalse(RoundIndex(0), entry_hash(first.audited.entry), ())]
    assert not second.votes and "nobody is accused" in second.alerts[0]


def test_who_sums_it_only_after_it_was_taken_back_votes_against_its_owner_all_the_same(tmp_path: Path) -> None:
    """The others may decide while this site still fetches the shares; the owner is out only if enough sites vote."""
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)

    async def leave(peer: PeerId, resource: str, on_bytes: Callable[[int], None]) -> None:
        second.log.roll_back(0)

    second.pace = leave
    hears(second, claim)
    assert second.log.height == 0
    assert second.told == [EntryFalse(RoundIndex(0), Digest(claim.entry_hash), (OWNER,))]
    assert second.votes == [(OWNER, 0)] and "has left our chain" in second.alerts[0]
    assert second.said == [claim], "others may have it still"
    (folder,) = second.evidence()
    assert read_votes(folder) == second.audited.votes


def test_claim_that_waited_until_the_entry_was_taken_back_is_looked_at_all_the_same(tmp_path: Path) -> None:
    """Looks go one by one, and a majority may be done with theirs first."""
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)

    async def run() -> None:
        auditor = second.auditor()
        auditor._owners[Digest(claim.entry_hash)] = second.audited.owners
        auditor.hear(TELLER, claim)
        second.log.roll_back(0)
        task = asyncio.create_task(auditor._follow_claims())
        while (auditor._claimed.is_set() or auditor._looks) and not task.done():
            await asyncio.to_thread(time.sleep, 0.01)
        assert task.cancel(), task.exception()

    asyncio.run(run())
    assert second.votes == [(OWNER, 0)] and "has left our chain" in second.alerts[0]


def test_result_that_was_found_false_before_any_vote_is_told_to_nobody(tmp_path: Path) -> None:
    """No chain has the entry, so there is nothing to take back, and no vote of the owner that makes it certain."""
    site = finder(tmp_path)
    site.log.roll_back(0)
    culprits, _ = asyncio.run(site.auditor(5.0).before_vote(replace(site.audited, votes=())))
    assert culprits == (OWNER,)
    assert not site.told and not site.said and not site.votes and "is in no chain" in site.alerts[0]


def test_what_is_said_of_a_sound_result_is_refuted_and_counted(tmp_path: Path) -> None:
    first = finder(tmp_path, lie_in=None)
    digest = entry_hash(first.audited.entry)
    shown_as_false(first, tmp_path / "shown")
    second = hearer(tmp_path, first)
    hears(second, FalseSum(RoundIndex(0), digest, 1), FalseSum(RoundIndex(0), digest, 2))
    assert [(peer, rule) for peer, rule, _ in second.bad] == [(TELLER, "bad_evidence")]
    assert not second.told and not second.votes and not second.alerts and not second.said
    assert second.site.num_sums == 1, "its second claim is not looked at"


def shown_as_false(site: Site, folder: Path) -> None:
    """It shows the shares of segment 1 of its entry, whatever its result."""
    folder.mkdir()
    shares = []
    for place, peer in enumerate(sorted(site.payloads)):
        (folder / share_name(place)).write_bytes(site.payloads[peer][40:64])
        shares.append(share_proof(site, peer))
    site.shelf.put(entry_hash(site.audited.entry), 1, folder, tuple(shares))


def share_proof(site: Site, peer: PeerId) -> ShareProof:
    hashes = site.shown[peer].hashes(5)
    tree = MerkleTree([hashes[first : first + 32] for first in range(0, len(hashes), 32)])
    return ShareProof(hashes[32:64], tree.proof(1))


def test_forged_proofs_prove_nothing(tmp_path: Path) -> None:
    first = finder(tmp_path)
    claim = finds(first)

    def other_share(resource: str, data: bytes) -> bytes:
        return bytes(len(data)) if resource.endswith("/1/2") else data

    def other_hash(resource: str, data: bytes) -> bytes:
        proof = decode_sum_proof(first.shelf.proof(Digest(claim.entry_hash), 1), 3)
        return data.replace(proof.shares[0].sha256, bytes(32)) if resource.endswith("/1") else data

    def garbage(resource: str, data: bytes) -> bytes:
        return b"\x91\x90" if resource.endswith("/1") else data

    def too_long(resource: str, data: bytes) -> bytes:
        return data + bytes(10_000) if resource.endswith("/1") else data

    for place, spoil in enumerate((other_share, other_hash, garbage, too_long)):
        second = hearer(tmp_path / str(place), first)
        second.spoil = spoil
        hears(second, claim)
        assert [(peer, rule) for peer, rule, _ in second.bad] == [(TELLER, "bad_evidence")], spoil.__name__
        assert not second.told and not second.alerts and not second.said and not second.site.num_sums
        assert not second.leftovers()


def test_who_shows_nothing_is_not_heard_for_a_while_and_no_offender(tmp_path: Path) -> None:
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)
    second.asks = None
    hears(second, claim)
    assert not second.bad and not second.told
    assert hears(second, FalseSum(RoundIndex(0), bytes(32), 1)).counts.shown == 0, "of an entry that is not ours"
    hears(second, FalseSum(RoundIndex(0), claim.entry_hash, 999))
    assert [rule for _, rule, _ in second.bad] == ["bad_evidence"], "no such segment"


def test_own_result_that_is_false_is_said_to_be_our_own(tmp_path: Path) -> None:
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)
    second.audited = replace(second.audited, owners=(ME,) * 3)
    hears(second, claim)
    assert not second.votes and "that is this site" in second.alerts[0]


def test_it_is_said_again_while_the_entry_can_be_taken_back(tmp_path: Path) -> None:
    site = finder(tmp_path)
    auditor = site.auditor()
    asyncio.run(auditor.audit(site.audited, 5.0))
    for height in (1, 8):
        auditor.disproofs.entry_came(height)
    assert len(site.said) == 3
    auditor.disproofs.entry_came(9)
    assert len(site.said) == 3
    auditor.disproofs.entry_came(1)
    assert len(site.said) == 3, "what is over is forgotten"


def test_vote_that_does_not_count_is_said_in_the_alert(tmp_path: Path) -> None:
    site = finder(tmp_path)

    def refuse(peer: PeerId, before: RoundIndex) -> str:
        raise CommandRefused("this run asks for no invites")

    site.evict = refuse  # type: ignore[method-assign]
    finds(site)
    assert "no vote to evict it: this run asks for no invites" in site.alerts[0]


def test_shelf_is_bounded_and_says_what_it_does_not_hold(tmp_path: Path) -> None:
    shelf, share = ProofShelf(), ShareProof(bytes(32), ())
    for segment in range(SHOWN_MAX + 1):
        shelf.put(Digest(bytes(32)), segment, tmp_path, (share,))
    with pytest.raises(StoreError, match="nothing is shown against segment 0"):
        shelf.proof(Digest(bytes(32)), 0)
    with pytest.raises(StoreError, match="has no contribution 1"):
        shelf.share(Digest(bytes(32)), SHOWN_MAX, 1)
