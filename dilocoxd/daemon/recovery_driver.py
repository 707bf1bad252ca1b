"""Brings this site to the chain of others: catching up, joining, healing a fork, replacing wrong bits.

One recovery at a time, ordered by the round machine, which neither votes nor commits meanwhile. Entries are checked
before anything is changed; each is durable in the log before it is applied (docs/internals.md 3.10).
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.daemon.chain_fetch import check_payload, fetch_branch
from dilocoxd.daemon.ledger import Ledger
from dilocoxd.daemon.outer_worker import RequestRefused
from dilocoxd.daemon.own_books import OwnBooks
from dilocoxd.daemon.snapshot_fetch import download_snapshot, newest_certified
from dilocoxd.daemon.snapshot_keeper import usable_snapshots
from dilocoxd.errors import PeerError, StoreError, WireError, WorkerError
from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.rounds.commands import InFlight, SettleContribution, StartRecovery
from dilocoxd.rounds.events import Event, RecoveryFailed, RecoveryFinished
from dilocoxd.rounds.limits import RoundLimits, VoteKeys
from dilocoxd.rounds.recovery import Branch, check_branch, is_better, settlement
from dilocoxd.store.aside import Aside
from dilocoxd.store.log import EntryLog, Source
from dilocoxd.store.snapshots import SnapshotIndex
from dilocoxd.swarm.fetch import FetchClient
from dilocoxd.swarm.pieces import Region
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import Entry, SignedEntry, entry_hash

REPLAY_MAX: Final = 16
"""More missing entries than this are skipped by a snapshot, if somebody has one."""


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """What the driver works with."""

    books: OwnBooks
    ledger: Ledger
    client: FetchClient
    keys: VoteKeys
    limits: RoundLimits
    snapshots: Path
    events: EventLog
    moved: Callable[[], None]
    """Told when the chain head has changed."""
    took: Callable[[SignedEntry], None]
    """Told each entry that was applied here without our taking part."""
    aside: Aside
    """Our own branch, until the better one is taken."""

    @property
    def log(self) -> EntryLog:
        return self.ledger.log


@dataclass(frozen=True, slots=True)
class Jump:
    """A downloaded snapshot."""

    index: SnapshotIndex
    holders: list[PeerId]
    directory: Path


def finish_turn_back(log: EntryLog, aside: Aside) -> None:
    """At start: the last process died between two branches. The better one stays. Raises StoreError."""
    kept = aside.entries()
    if kept and log.height >= kept[0].entry.round:
        fork = kept[0].entry.round
        taken = Branch(fork, tuple(log.entries(fork)))
        if not is_better(taken, [signed.entry for signed in kept]):
            log.roll_back(fork)
            aside.put_back(log)
    aside.clear()


class RecoveryDriver:
    """Runs one ordered recovery after the other."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts
        self._orders: asyncio.Queue[tuple[StartRecovery, Callable[[Event], None]]] = asyncio.Queue()
        self._settled: PhaseId | None = None
        """Phase of ours that the running recovery has settled."""
        self.text = ""
        """What recovery is doing, for the operator; empty when none runs."""

    def start(self, order: StartRecovery, tell: Callable[[Event], None]) -> None:
        """RecoveryFinished or RecoveryFailed follows."""
        self._orders.put_nowait((order, tell))

    async def run(self) -> None:
        """Until cancelled. Raises StoreError or WorkerError when our own disk or worker fails."""
        while True:
            order, tell = await self._orders.get()
            try:
                tell(await self._recover(order))
            finally:
                self.text = ""
                self._parts.ledger.resume()

    async def _recover(self, order: StartRecovery) -> Event:
        parts = self._parts
        started, bytes_before = asyncio.get_running_loop().time(), parts.client.counts["bytes_received"]
        parts.events.emit(
            catalogue.RecoveryStarted(own_height=parts.log.height, target_height=order.height, reason=order.reason)
        )
        reasons: list[str] = []
        self._settled = None
        head, num_answers = parts.log.head, 0
        if order.is_rebuild:
            parts.ledger.pause("the state is rebuilt")
            await self._rebuild()
        for peer in order.peers:
            try:
                self.text = f"the chain of {peer} ({order.reason})"
                await self._from(peer, order)
                num_answers += 1
            except (PeerError, WireError) as error:
                reasons.append(f"{peer}: {error}")
            if parts.log.head != head:
                break  # also when only a part of its chain could be had; the next recovery asks for the rest
        if not num_answers and parts.log.head == head:
            return RecoveryFailed("; ".join(reasons) or "no peer to ask")
        seconds = asyncio.get_running_loop().time() - started
        num_bytes = parts.client.counts["bytes_received"] - bytes_before
        parts.events.emit(
            catalogue.RecoveryFinished(height=parts.log.height, recovery_s=seconds, bytes_received=num_bytes)
        )
        parts.moved()
        return RecoveryFinished(parts.ledger.chain, self._settled)

    async def _from(self, peer: PeerId, order: StartRecovery) -> None:
        """Take over what this peer's chain has more or better. Raises PeerError, WireError."""
        parts = self._parts
        branch = await fetch_branch(parts.client, peer, parts.log, parts.log.height)
        own = [signed.entry for signed in parts.log.entries(branch.fork)]
        if not is_better(branch, own):
            return
        base = parts.ledger.view_at(branch.fork)
        await asyncio.to_thread(check_branch, branch, base, parts.limits, parts.keys)
        if own or len(branch.entries) > 1:
            parts.ledger.pause("catching up")
        donors = [peer, *(other for other in order.peers if other != peer)]
        entries = list(branch.entries)
        can_replay = not own or await asyncio.to_thread(self._can_replay, branch.fork)
        jump = await self._find_jump(entries, donors) if not can_replay or len(entries) > REPLAY_MAX else None
        if jump is None and not can_replay:
            raise PeerError(
                f"the state at the fork (height {branch.fork}) cannot be made from our disk any more, and nobody offers"
                " a snapshot of the better chain"
            )
        if own:
            await self._roll_back(branch, own, order.in_flight)
            if can_replay:
                await self._rebuild()
        try:
            if jump is not None:
                entries = await self._jump(jump, entries, order.in_flight)
            await self._replay(entries, donors, order.in_flight)
        except (PeerError, WireError):
            if own:
                await self._turn_back(branch, own, order.in_flight)
            raise
        await asyncio.to_thread(parts.aside.clear)

    async def _replay(self, entries: list[SignedEntry], donors: list[PeerId], in_flight: InFlight | None) -> None:
        """Entry by entry; where nobody has a payload any more, on from a snapshot."""
        while entries:
            signed = entries[0]
            settle = settlement(signed.entry, in_flight)
            try:
                await self._take(signed, donors, settle)
            except PeerError:
                jump = await self._find_jump(entries, donors)
                if jump is None:
                    raise
                entries = await self._jump(jump, entries, in_flight)
                continue
            await self._parts.books.enter_chain([signed.entry], in_flight)
            self._settled = settle.phase if settle is not None else self._settled
            entries = entries[1:]

    async def _turn_back(self, branch: Branch, own: list[Entry], in_flight: InFlight | None) -> None:
        """The branch is false or cannot be had: ours again, unless what we have of the other is better anyway."""
        parts = self._parts
        taken = Branch(branch.fork, tuple(parts.log.entries(branch.fork)))
        flying = in_flight if self._settled is None else None
        if is_better(taken, own):
            await parts.books.leave_chain(own, taken, flying)
        else:
            self.text = "our own branch again"
            await parts.books.leave_chain([signed.entry for signed in taken.entries], Branch(branch.fork, ()), flying)
            await asyncio.to_thread(parts.log.roll_back, branch.fork)
            await asyncio.to_thread(parts.aside.put_back, parts.log)
            await parts.books.enter_chain(own, flying)
        await self._rebuild()
        await asyncio.to_thread(parts.aside.clear)

    def _can_replay(self, height: int) -> bool:
        """Whether our disk leads to this state: a snapshot at or below it, or genesis, and payloads. Blocks."""
        log = self._parts.log
        rounds = [int(path.name) for path in usable_snapshots(self._parts.snapshots, log)]
        start = next((number for number in rounds if number <= height), 0)
        return all(log.has_payload(index) for index in range(start, height))

    async def _take(self, signed: SignedEntry, donors: list[PeerId], settle: SettleContribution | None) -> None:
        """Payload from any donor, then log, then state. What cannot be applied is not left in the log."""
        parts, index = self._parts, signed.entry.round
        state = parts.ledger.state
        if state is None or state.state_digest != signed.entry.state_digest:
            raise WireError("bad_hash", f"entry {index} was voted for on another state than its chain leads to")
        self.text = f"the payload of entry {index}"
        reasons: list[str] = []
        payloads = parts.ledger.payloads.at(signed.entry.lowrank_r)
        lengths = payloads.lengths
        fd = os.memfd_create(f"payload-{index}", os.MFD_CLOEXEC)
        try:
            for donor in donors:
                try:
                    region = Region(fd, 0, payloads.total_bytes)
                    await parts.client.fetch_region(donor, f"payload/{index}", region)
                    await asyncio.to_thread(check_payload, fd, lengths, signed.entry)
                except (PeerError, WireError) as error:
                    # Not held against the donor: it may have left for another chain since we asked for its entries.
                    reasons.append(f"{donor}: {error}")
                else:
                    break
            else:
                raise PeerError(f"payload of entry {index}: {'; '.join(reasons)}")
            await asyncio.to_thread(parts.log.append, signed, Source(fd, 0, lengths))
        finally:
            os.close(fd)
        self.text = f"entry {index} to be applied"
        try:
            await parts.ledger.apply_logged(RoundIndex(index), settle)
        except RequestRefused as refused:
            if refused.kind != "bad_payload":
                raise
            await asyncio.to_thread(parts.log.roll_back, index)
            raise WireError("bad_payload", f"entry {index}: {refused.detail}") from refused
        parts.took(signed)

    async def _find_jump(self, entries: list[SignedEntry], donors: list[PeerId]) -> Jump | None:
        """The newest snapshot that anybody has of a state between these entries, on our disk; None if there is none."""
        parts = self._parts
        certified = {int(signed.entry.round): signed.entry for signed in entries[1:]}
        self.text = "the newest snapshot"
        found = await newest_certified(parts.client, donors, certified)
        if found is None:
            return None
        index, holders = found
        self.text = f"snapshot {index.round} ({index.total_bytes} bytes)"
        return Jump(index, holders, await download_snapshot(parts.client, holders, index, parts.snapshots))

    async def _jump(self, jump: Jump, entries: list[SignedEntry], in_flight: InFlight | None) -> list[SignedEntry]:
        """Skip part of the way by a snapshot; the entries that are left to replay."""
        parts = self._parts
        index, holders, directory = jump.index, jump.holders, jump.directory
        skipped = index.round - entries[0].entry.round
        try:
            await parts.ledger.adopt(str(directory), entries[skipped].entry, entries[:skipped])
        except (StoreError, WorkerError) as error:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            if await asyncio.to_thread(self._can_replay, parts.log.height):
                await self._rebuild()
            raise WireError("bad_hash", f"snapshot {index.round} of {holders}: {error}") from error
        await parts.books.enter_chain((signed.entry for signed in entries[:skipped]), in_flight)
        for signed in entries[:skipped]:
            parts.took(signed)
        return entries[skipped:]

    async def _roll_back(self, branch: Branch, own: list[Entry], in_flight: InFlight | None) -> None:
        """Leave our branch for a better one; first our books, then the log."""
        parts = self._parts
        await parts.books.leave_chain(own, branch, in_flight)
        parts.events.emit(
            catalogue.ForkResolved(
                fork_height=branch.fork,
                kept=entry_hash(branch.entries[-1].entry).hex()[:16],
                dropped=entry_hash(own[-1]).hex()[:16],
                is_rolled_back=True,
            )
        )
        self.text = f"the state at the fork (height {branch.fork})"
        await asyncio.to_thread(parts.aside.keep, parts.log, branch.fork)
        await asyncio.to_thread(parts.log.roll_back, branch.fork)

    async def _rebuild(self) -> None:
        """The state of our log from the newest usable snapshot, else from genesis."""
        parts = self._parts
        usable = await asyncio.to_thread(usable_snapshots, parts.snapshots, parts.log)
        for directory in [*map(str, usable), ""]:
            try:
                await parts.ledger.rebuild(directory)
            except (StoreError, WorkerError):
                if not directory:
                    raise
            else:
                return
