"""Makes audits: draws segments, brings their inputs together, has them summed again, tells what was found.

One segment at a time, so that memory and disk hold one segment of each contributor. Nobody is accused for not
answering, nor while anything of our own is not proved (machines/audit/verdict.py).
"""

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dilocoxd.answers.status import Audits
from dilocoxd.daemon.audit.disproofs import Disproofs
from dilocoxd.daemon.audit.inputs import AuditedEntry, AuditSources, RoundInputs, Unanswered, files_sha256
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.site.interface import BadShare, TrainingSite
from dilocoxd.errors import StoreError, WireError, WorkerError
from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.audit.claims import Accusation
from dilocoxd.machines.audit.draw import SEED_BYTES, drawn, others_segments
from dilocoxd.machines.audit.verdict import AuditFinding, Summed, is_sound, judge
from dilocoxd.machines.round.outputs import RoundSummary
from dilocoxd.store.audits import RESULT_NAME, write_votes
from dilocoxd.telemetry.catalogue import Event
from dilocoxd.telemetry.suspicions import AuditFinished, ResultFalse
from dilocoxd.wire.audit import AuditCase
from dilocoxd.wire.entry import SignedEntry, entry_hash
from dilocoxd.wire.messages import FalseSum

AFTER_S: Final = 15.0
"""So long the audits of a committed entry wait for other sites."""
QUEUE_MAX: Final = 4
"""Entries that wait to be audited; while there are more the oldest goes unaudited, and is counted."""
SUM_TIMEOUT_S: Final = 60.0
SUMS_TO_ACCUSE: Final = 2
OWNERS_KEPT: Final = 16
"""Entries of which it is remembered who reduced which segment."""
LOOK_ALONE_S: Final = 15.0
"""Beside a look at what another site shows that takes longer the next one begins."""
LOOKS_MAX: Final = 4
"""So many at once."""
NAMED_MAX: Final = 4
"""False results that the text of the alert names."""


@dataclass(frozen=True, slots=True)
class AuditRules:
    """Of the run. `before_vote_s`: how long a vote may wait for audits; 0: they are made after the commit."""

    fraction: float
    before_vote_s: float = 0.0


class Auditor:
    """Of one daemon in a run that audits."""

    def __init__(
        self,
        rules: AuditRules,
        sources: AuditSources,
        site: TrainingSite,
        alerts: AlertBook,
        emit: Callable[[Event], None],
        disproofs: Disproofs,
    ) -> None:
        self.counts = Audits()
        self._rules = rules
        self._from = sources
        self._site = site
        self._alerts = alerts
        self._emit = emit
        self.disproofs = disproofs
        self._owners: OrderedDict[Digest, tuple[PeerId, ...]] = OrderedDict()
        """Of the newest entries that this site took part in."""
        self._claimed = asyncio.Event()
        self._looks: set[asyncio.Task[None]] = set()
        self._queue: asyncio.Queue[RoundSummary] = asyncio.Queue(QUEUE_MAX)
        self._texts: list[str] = []

    @property
    def is_before_vote(self) -> bool:
        """Votes wait for audits."""
        return self._rules.before_vote_s > 0

    def later(self, summary: RoundSummary) -> None:
        """With `verify = after`: audit this committed entry when there is time, while the next round goes on."""
        self._owners[summary.entry_hash] = summary.owners
        while len(self._owners) > OWNERS_KEPT:
            self._owners.popitem(last=False)
        self.disproofs.entry_came(summary.round + 1)
        if self.is_before_vote:
            return
        if self._queue.full():
            self._queue.get_nowait()
            self._count(undecided=1)
        self._queue.put_nowait(summary)

    async def run(self) -> None:
        """Audits what `later` was told, and what others tell (`hear`), one after the other each, until cancelled."""
        await asyncio.to_thread(self._from.folders.clear)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_claims(), name="false results that others tell of")
            while True:
                summary = await self._queue.get()
                audited = await self._stored(summary.round, summary.entry_hash)
                if audited is None:  # a fork took it away meanwhile
                    self._count(undecided=1)
                else:
                    await self.audit(audited, AFTER_S)

    async def _stored(self, number: RoundIndex, digest: Digest) -> AuditedEntry | None:
        """This entry of our log, if it is there."""
        try:
            signed = await asyncio.to_thread(self._from.ledger.log.entry, number)
        except StoreError:
            return None
        return self._audited(signed) if entry_hash(signed.entry) == digest else None

    def _audited(self, signed: SignedEntry) -> AuditedEntry:
        owners = self._owners.get(entry_hash(signed.entry), ())
        return AuditedEntry(signed.entry, signed.offers, owners, signed.votes)

    # --- what others tell (X14)

    def hear(self, peer: PeerId, message: FalseSum) -> None:
        """Another site says that it can show a result false."""
        owners = self._owners.get(Digest(message.entry_hash), ())
        owner = owners[message.segment] if message.segment < len(owners) else ""
        if self.disproofs.hear(peer, message, owner, self._from.ledger.log.height):
            self._claimed.set()

    async def _follow_claims(self) -> None:
        """One look at a time, as a rule. Beside one that takes long others begin, so that nobody keeps those who wait
        by showing slowly."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._claimed.wait()
                claim = self.disproofs.claims.next(self._from.ledger.log.height, is_beside=bool(self._looks))
                if claim is None:
                    self._claimed.clear()
                    continue
                look = group.create_task(self._look_at(claim), name="a look at shares that are shown")
                self._looks.add(look)
                look.add_done_callback(self._looked)
                await asyncio.wait([look], timeout=LOOK_ALONE_S)
                if len(self._looks) >= LOOKS_MAX:
                    await asyncio.wait(self._looks, return_when=asyncio.FIRST_COMPLETED)

    def _looked(self, look: asyncio.Task[None]) -> None:
        self._looks.discard(look)
        self._claimed.set()  # a stranger may wait for that

    async def _look_at(self, claim: Accusation) -> None:
        """Sum what is shown; what the teller says of it beside that counts for nothing."""
        disproofs, log = self.disproofs, self._from.ledger.log
        if (signed := disproofs.told_of(claim)) is None:
            return None  # many others were told of since
        audited = self._audited(signed)  # also where our chain has left it while the claim waited
        if claim.segment >= len(audited.entry.result_hashes):
            return disproofs.in_vain(claim, log.height, "the entry has no such segment")
        if disproofs.claims.is_proved(claim.entry_hash, audited.owner(claim.segment)):
            return None
        inputs = RoundInputs(self._from, audited, 0.0)
        try:
            finding = await self._check(inputs, claim.segment, teller=claim.teller)
        except Unanswered:
            return disproofs.in_vain(claim, log.height)
        except WireError as error:
            return disproofs.in_vain(claim, log.height, error.detail)
        except (StoreError, WorkerError, OSError):
            return None  # a fault of our own: the claim is repeated
        finally:
            self._count(bytes_received=inputs.bytes_received)
        self._count(shown=1)
        if finding.verdict == "sound":
            disproofs.in_vain(claim, log.height, "the shares give the very result that the entry has")
        return None

    async def before_vote(self, audited: AuditedEntry) -> tuple[tuple[PeerId, ...], str]:
        """Owners of results that are proved false, and one sentence. Returns within a bounded time."""
        found = await self.audit(audited, self._rules.before_vote_s)
        false = [finding for finding in found if finding.verdict == "false"]
        culprits = {PeerId(owner) for finding in false if (owner := audited.owner(finding.segment))}
        why = "; ".join(f"segment {finding.segment}: {finding.why}" for finding in false[:NAMED_MAX])
        return tuple(sorted(culprits)), why

    async def audit(self, audited: AuditedEntry, limit_s: float) -> list[AuditFinding]:
        """Findings of the segments drawn for an entry; those that time does not allow are undecided."""
        clock = asyncio.get_running_loop().time
        began = clock()
        segments, found = self._draw(audited), list[AuditFinding]()
        try:
            inputs = RoundInputs(self._from, audited, began + limit_s)
        except StoreError as error:  # payloads of an entry that is not of this run
            return [AuditFinding("unproved", segment, str(error)) for segment in segments]
        for segment in segments:
            found.append(await self._bounded(inputs, segment, began + limit_s))
        verdicts = [finding.verdict for finding in found]
        num_made = verdicts.count("sound") + verdicts.count("false")
        self._count(
            made=num_made,
            proofs=verdicts.count("false"),
            unanswered=verdicts.count("unanswered"),
            undecided=verdicts.count("unproved"),
            bytes_received=inputs.bytes_received,
        )
        if segments:
            self._emit(
                AuditFinished(
                    round=audited.entry.round,
                    num_made=num_made,
                    num_false=verdicts.count("false"),
                    num_undecided=len(found) - num_made,
                    bytes_received=inputs.bytes_received,
                    seconds=clock() - began,
                )
            )
        return found

    def _draw(self, audited: AuditedEntry) -> tuple[int, ...]:
        num_segments = len(audited.entry.result_hashes)
        others = others_segments(audited.owners, self._from.me, num_segments)
        return drawn(os.urandom(SEED_BYTES), self._rules.fraction, others)

    async def _bounded(self, inputs: RoundInputs, segment: int, until: float) -> AuditFinding:
        if _left_s(until) <= 0:
            return _no_time(segment)
        try:
            return await self._check(inputs, segment, until=until)
        except Unanswered as silent:
            return AuditFinding("unanswered", segment, str(silent), silent.peers)
        except (StoreError, WireError, WorkerError, OSError) as error:
            return AuditFinding("unproved", segment, str(error))

    async def _check(
        self, inputs: RoundInputs, segment: int, *, until: float | None = None, teller: PeerId | None = None
    ) -> AuditFinding:
        folder, case = await inputs.collect(segment, teller)
        folders = self._from.folders
        try:
            left_s = SUM_TIMEOUT_S if until is None else _left_s(until)
            if left_s <= 0:  # collecting took all of it
                return _no_time(segment)
            sums = [await self._sum(folder, left_s)]
            if is_sound(case, sums[0]):
                return AuditFinding("sound", segment)
            while len(sums) < SUMS_TO_ACCUSE:
                sums.append(await self._sum(folder, SUM_TIMEOUT_S))
            read_again = await asyncio.to_thread(files_sha256, folder, len(case.proofs))
            finding = judge(case, inputs.num_segments, read_again, sums)
            if finding.verdict == "false":
                await self._accuse(inputs, case, folder, finding)
            return finding
        finally:
            await asyncio.to_thread(folders.forget, folder)

    async def _sum(self, folder: Path, limit_s: float) -> Summed:
        try:
            done = await self._site.reduce_again(str(folder), timeout_s=min(SUM_TIMEOUT_S, max(1.0, limit_s)))
        except BadShare as error:
            return Summed(bad_place=error.slot)
        return Summed(done.sha256)

    async def _accuse(self, inputs: RoundInputs, case: AuditCase, folder: Path, finding: AuditFinding) -> None:
        """Keep the evidence, raise the alarm, tell the others. The alarm does not depend on the disk."""
        if self.disproofs.claims.is_proved(entry_hash(case.entry), case.owner):
            return  # one proof against an owner is enough, and there is room for few
        kept: Path | None = None
        try:
            with contextlib.suppress(StoreError):  # who came later has the entry without its payload
                if (result := await asyncio.to_thread(inputs.result, finding.segment)) is not None:
                    await asyncio.to_thread((folder / RESULT_NAME).write_bytes, result)
            if votes := inputs.audited.votes:  # who has the folder alone may have a log without the entry by then
                await asyncio.to_thread(write_votes, folder, votes)
            kept = await asyncio.to_thread(self._from.folders.keep, folder)
        except (StoreError, OSError) as error:
            self._texts.append(f"evidence of entry {case.entry.round} could not be kept: {error}")
        place = RoundIndex(case.entry.round), finding.segment
        self._emit(
            ResultFalse(peer=case.owner, round=place[0], segment=place[1], reason=finding.why, evidence=str(kept or ""))
        )
        owner = case.owner or "an owner that this site does not remember"
        follows = self.disproofs.found(inputs.audited, finding.segment, kept, case.proofs)
        self._texts.append(f"{owner}: segment {place[1]} of round {place[0]} is false ({finding.why}; {follows})")
        del self._texts[:-NAMED_MAX]
        self._alerts.alert("false_result", "; ".join(reversed(self._texts)))

    def _count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + by for name, by in more.items()})


def _left_s(until: float) -> float:
    """Seconds to this loop time."""
    return until - asyncio.get_running_loop().time()


def _no_time(segment: int) -> AuditFinding:
    return AuditFinding("unproved", segment, "no time was left")
