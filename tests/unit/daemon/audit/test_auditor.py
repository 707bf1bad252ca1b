"""Audits over sites that answer, are silent, or show other bytes than they signed: who is named, what is counted."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dilocoxd.daemon.audit.auditor import QUEUE_MAX, Auditor, AuditRules
from dilocoxd.daemon.audit.disproofs import Disproofs
from dilocoxd.daemon.audit.inputs import AuditedEntry, AuditSources
from dilocoxd.daemon.audit.kept_shares import KeptShares
from dilocoxd.daemon.audit.shelf import ProofShelf
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.site.interface import BadShare
from dilocoxd.errors import CommandRefused, PeerError
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.store.audits import AuditFolders, evidence_directory, read_case, share_name
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece
from dilocoxd.store.log import EntryLog
from dilocoxd.telemetry.catalogue import Event
from dilocoxd.telemetry.suspicions import ResultFalse
from dilocoxd.wire.entry import Contribution, Entry, Signature, genesis_hash, payload_root
from dilocoxd.wire.local.outer_worker import ReducedAgain

ME, OTHER, OWNER = PeerId("Qma"), PeerId("Qmb"), PeerId("Qmc")
RUN = RunId("run-0123")
LENGTHS = (40, 24, 8)
GENESIS = genesis_hash(RUN, bytes(32))


def summed(parts: list[bytes]) -> bytes:
    """The arithmetic of these sites: any function of the bytes in their order."""
    return hashlib.sha256(b"|".join(parts)).digest()


@dataclass
class Summing:
    """A site whose outer worker sums the files of a folder."""

    num_sums: int = 0
    limits_s: list[float] = field(default_factory=list)
    disturb: Callable[[Path], None] = lambda folder: None

    async def reduce_again(self, directory: str, *, timeout_s: float = 60.0) -> ReducedAgain:
        self.num_sums += 1
        self.limits_s.append(timeout_s)
        folder = Path(directory)
        number = len(read_case(folder).proofs)
        parts = [(folder / share_name(place)).read_bytes() for place in range(number)]
        self.disturb(folder)
        if any(part == bytes(len(part)) for part in parts):
            raise BadShare(next(place for place, part in enumerate(parts) if part == bytes(len(part))), directory)
        return ReducedAgain(0, summed(parts), 0.0)


@dataclass
class World:
    """Three sites with kept work; we are the first, and the last owns all segments."""

    folder: Path
    payloads: dict[PeerId, bytes] = field(default_factory=dict)
    shown: dict[PeerId, KeptShares] = field(default_factory=dict)
    silent: set[PeerId] = field(default_factory=set)
    fetched: Callable[[], None] = lambda: None
    events: list[Event] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    site: Summing = field(default_factory=Summing)

    def __post_init__(self) -> None:
        for peer in (ME, OTHER, OWNER):
            self.payloads[peer] = os.urandom(sum(LENGTHS))
            self.keep(peer, self.payloads[peer])

    def keep(self, peer: PeerId, payload: bytes) -> None:
        fd = os.memfd_create("payload")
        os.pwrite(fd, payload, 0)
        store = self.folder / peer / "site" / "work"
        KeptWorkStore(store).keep(KeptWork(PhaseId(5), 0, Digest(bytes(32))), [Piece(fd, 0, len(payload))])
        os.close(fd)
        self.shown[peer] = KeptShares(store, lambda: LENGTHS)

    def entry(self, lie_in: int | None = None) -> AuditedEntry:
        named = []
        for peer, payload in sorted(self.payloads.items()):
            root = payload_root(tuple(hashlib.sha256(part).digest() for part in cut(payload)))
            named.append(Contribution(peer, PhaseId(5), RoundIndex(0), 10, 100, root))
        shares = [cut(payload) for _, payload in sorted(self.payloads.items())]
        results = [summed([share[segment] for share in shares]) for segment in range(len(LENGTHS))]
        if lie_in is not None:
            results[lie_in] = hashlib.sha256(b"-20 times the mean").digest()
        entry = Entry(RUN, RoundIndex(0), GENESIS, bytes(32), tuple(named), tuple(results), 0, 0, 10, (), ())
        return AuditedEntry(entry, (Signature(b"k", b"s"),) * 3, (OWNER,) * len(LENGTHS))

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        if peer in self.silent:
            raise PeerError(f"{peer} is silent")
        return self.shown[peer].hashes(int(resource.removeprefix("shares/")))[:bytes_max]

    async def fetch_region(
        self, peer: PeerId, resource: str, target: Any, on_bytes: Callable[[int], None] = lambda _: None
    ) -> None:
        _, phase, segment = resource.split("/")
        place = self.shown[peer].place(int(phase), int(segment))
        data = place.path.read_bytes()[place.offset : place.offset + place.length]
        os.pwrite(target.fd, data, 0)
        self.fetched()

    def auditor(self, limit_s: float = 2.0) -> Auditor:
        ledger = SimpleNamespace(
            log=EntryLog(self.folder / ME / "log", RUN, GENESIS), payloads=PayloadMaps({0: (LENGTHS,)})
        )
        sources = AuditSources(
            ME, cast(Any, ledger), cast(Any, self), self.shown[ME], AuditFolders(self.folder / ME), 8
        )  # fmt: skip
        book = SimpleNamespace(alert=lambda code, text: self.alerts.append(f"{code}: {text}"))
        disproofs = Disproofs(ME, self.evict, ledger.log, ProofShelf())
        return Auditor(
            AuditRules(1.0, limit_s), sources, cast(Any, self.site), cast(Any, book), self.events.append, disproofs
        )

    def evict(self, peer: PeerId, before: RoundIndex) -> str:
        raise CommandRefused("nobody is evicted here")

    def evidence(self) -> list[Path]:
        return AuditFolders(self.folder / ME).kept()

    def leftovers(self) -> list[Path]:
        return list((self.folder / ME / "site" / "audits").iterdir())


def cut(payload: bytes) -> list[bytes]:
    return [payload[:40], payload[40:64], payload[64:72]]


def test_honest_owner_is_accused_of_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    auditor = world.auditor()
    assert asyncio.run(auditor.before_vote(world.entry())) == ((), "")
    assert (auditor.counts.made, auditor.counts.proofs, auditor.counts.undecided) == (3, 0, 0)
    assert auditor.counts.bytes_received == 2 * (sum(LENGTHS) + 32 * len(LENGTHS))
    assert not world.alerts and not world.evidence() and not world.leftovers()


def test_liar_is_named_with_round_segment_and_evidence(tmp_path: Path) -> None:
    world = World(tmp_path)
    auditor = world.auditor()
    culprits, why = asyncio.run(auditor.before_vote(world.entry(lie_in=1)))
    assert culprits == (OWNER,)
    assert why.startswith("segment 1: ")
    assert (auditor.counts.made, auditor.counts.proofs) == (3, 1)
    (told,) = [event for event in world.events if isinstance(event, ResultFalse)]
    assert (told.peer, told.round, told.segment) == (OWNER, 0, 1)
    (folder,) = world.evidence()
    assert str(folder) == told.evidence
    case = read_case(folder)
    assert case.owner == OWNER and not case.unproved(len(LENGTHS))
    assert [OWNER in alert and "segment 1 of round 0" in alert for alert in world.alerts] == [True]
    assert not world.leftovers()
    assert world.site.num_sums == 4, "the sum that differs is made twice"


def test_share_that_does_not_decode_makes_the_result_false(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.payloads[OTHER] = bytes(sum(LENGTHS))
    world.keep(OTHER, world.payloads[OTHER])
    assert asyncio.run(world.auditor().before_vote(world.entry()))[0] == (OWNER,)


def test_who_does_not_answer_is_counted_and_not_accused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.silent.add(OTHER)
    auditor = world.auditor(limit_s=0.3)
    assert asyncio.run(auditor.before_vote(world.entry(lie_in=0))) == ((), "")
    counts = auditor.counts
    assert counts.made == 0
    assert counts.unanswered + counts.undecided == 3
    assert counts.unanswered >= 1
    assert not world.alerts


def test_who_shows_other_bytes_than_it_signed_proves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    audited = world.entry(lie_in=0)
    world.keep(OTHER, os.urandom(sum(LENGTHS)))
    auditor = world.auditor(limit_s=0.3)
    assert asyncio.run(auditor.before_vote(audited))[0] == ()
    assert auditor.counts.made == 0 and not world.alerts


def test_own_bytes_that_are_not_those_we_offered_accuse_nobody(tmp_path: Path) -> None:
    """As kept work is that was copied from a buffer which held another round by then."""
    world = World(tmp_path)
    audited = world.entry()
    world.keep(ME, os.urandom(sum(LENGTHS)))
    auditor = world.auditor()
    assert asyncio.run(auditor.before_vote(audited))[0] == ()
    assert auditor.counts.undecided == 3
    (tmp_path / ME / "site" / "work" / "5.work").unlink()
    assert asyncio.run(auditor.before_vote(audited))[0] == ()
    assert auditor.counts.undecided == 6 and not world.alerts


def test_files_that_change_under_the_audit_accuse_nobody(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.site.disturb = lambda folder: (folder / share_name(2)).write_bytes(b"the next round")  # type: ignore[func-returns-value, assignment]
    auditor = world.auditor()
    assert asyncio.run(auditor.before_vote(world.entry(lie_in=2)))[0] == ()
    assert auditor.counts.undecided >= 1
    assert auditor.counts.proofs == 0
    assert not world.alerts and not evidence_directory(tmp_path / ME).exists()


@pytest.mark.parametrize(("each_s", "limits"), [(15.0, [20.0]), (25.0, [])])
def test_what_collecting_took_is_no_time_left_for_summing(tmp_path: Path, each_s: float, limits: list[float]) -> None:
    """Two shares are fetched for each segment; the second one's finds the time over."""
    world = World(tmp_path)

    async def audit() -> tuple[PeerId, ...]:
        loop, passed = asyncio.get_running_loop(), [0.0]
        began = loop.time()
        loop.time = lambda: began + passed[0]  # type: ignore[method-assign]

        def fetched() -> None:
            passed[0] += each_s

        world.fetched = fetched
        return (await auditor.before_vote(world.entry()))[0]

    auditor = world.auditor(limit_s=50.0)
    assert asyncio.run(audit()) == ()
    assert world.site.limits_s == pytest.approx(limits, abs=0.1)
    assert auditor.counts.made == len(limits)
    assert not world.leftovers()


def test_entries_that_nobody_has_time_for_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    auditor = world.auditor(limit_s=0.0)
    assert not auditor.is_before_vote
    summary = cast(Any, SimpleNamespace(round=RoundIndex(0), entry_hash=Digest(bytes(32)), owners=()))
    for _ in range(QUEUE_MAX + 2):
        auditor.later(summary)
    assert auditor.counts.undecided == 2
