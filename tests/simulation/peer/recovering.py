"""The simulated driver of the real recovery machine (machines/recovery/machine.py): questions to peers, steps on disk.

Answers are what the source has when they leave; they are lost, late, or from a liar; sources die, are cut off, stand
still. The process can crash between any two effects; what is on disk, chunks included, is there in its next life. A
simulated snapshot is the payloads that lead to its state: all peers keep them, but serve only the newest
(`Swarm.serves_last`), as after retention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.chain import ChainView, view_of
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, check_branch
from dilocoxd.machines.recovery.finality import num_final
from dilocoxd.machines.recovery.machine import RecoveryMachine
from dilocoxd.machines.recovery.own_chain import compared_rounds
from dilocoxd.machines.recovery.rollback import dropped_phases, settlement
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.simulation.ledger import Broken
from tests.simulation.peer.disk import GENESIS, GENESIS_DIGEST, RUN_ID, Crashed, Disk, Payload, Stored, hashes, sha

if TYPE_CHECKING:
    from tests.simulation.peer.node import Node
    from tests.simulation.swarm import Swarm

STEP_S = 0.05
CLOCK_GRAIN_S = 1e-6
DEADLINE_MAX_S = 60.0
SNAPSHOT_EVERY = 2
NUM_CHUNKS = 6
CHUNK_BYTES = 20
ANSWER_MAX = 8


class Recovery:
    """One ordered recovery of one node."""

    def __init__(self, swarm: Swarm, node: Node, order: c.StartRecovery) -> None:
        self.swarm = swarm
        self.node = node
        self.order = order
        self.rng = swarm.world.rng
        heads = [GENESIS, *(entry_hash(stored.signed.entry) for stored in node.disk.log)]
        digest, limits = node.machine.chain.state_digest, swarm.recovery_limits
        self.before = heads
        self.machine = RecoveryMachine(order, heads, digest, limits, adopted=node.disk.adopted)
        self.digest = node.machine.chain.state_digest
        self.own: list[Stored] = []
        """What we gave up for the branch that is being taken."""
        self.waiting: set[int] = set()
        self.payloads: dict[int, Payload] = {}
        self.contents: dict[bytes, list[Stored]] = {}
        """By key of an offer: what the snapshot holds."""
        self.key = b""
        self.chunk_of: dict[int, int] = {}
        self.liars: set[PeerId] = set()
        """Gave a wrong chunk: must not be asked for another."""
        self.wake_at = float("inf")

    # --- the machine

    def start(self) -> None:
        self._carry_out(None, self.machine.start(now=self.node.clock()))

    def _feed(self, event: r.RecoveryEvent) -> None:
        if not self.node.is_recovering:
            return
        if self.swarm.world.keeps_transcript:
            self.swarm.world.log(f"{self.node.name} recovery {event}")
        self._carry_out(event, self.machine.handle(event, now=self.node.clock()))

    def _carry_out(self, event: r.RecoveryEvent | None, effects: list[r.Effect]) -> None:
        if self.swarm.listener is not None:
            self.swarm.listener.recovering(self.node, event, effects)
        try:
            for effect in effects:
                if self.swarm.world.keeps_transcript:
                    self.swarm.world.log(f"{self.node.name} recovery  -> {effect}")
                self.node._count_down()
                self._one(effect)
        except Crashed:
            self.node.crash()
            return
        except StoreError as error:
            self._finish(e.StoreFailed(str(error)))
            return
        self.machine.check()
        self._arm()

    def _arm(self) -> None:
        """R-e: a step of our own is under way, or there is a deadline."""
        node, deadline = self.node, self.machine.next_deadline()
        if deadline is None:
            return
        assert deadline - node.clock() <= DEADLINE_MAX_S, "R-e: recovery waits too long"
        at = (deadline - node.clock_zero) / node.clock_rate + CLOCK_GRAIN_S
        if at < self.wake_at or self.wake_at <= node.world.now:
            self.wake_at = at
            node.later(max(0.0, at - node.world.now), lambda: self._on_wake(at))

    def _on_wake(self, at: float) -> None:
        if at == self.wake_at:
            self.wake_at = float("inf")
            self._feed(r.Tick())

    def _one(self, effect: r.Effect) -> None:
        match effect:
            case r.AskEntries() | r.AskSnapshots() | r.AskOffer() | r.AskChunk() | r.AskPayload():
                self._ask(effect)
            case r.Cancel():
                self.waiting.discard(effect.request)
            case r.SourceDropped():
                self.liars.add(effect.peer)
            case r.FinalKept():
                self.swarm.final_kept(self.node, effect)
            case r.ForgetOwn():
                self._complete()
            case r.Done():
                self._done(effect)
            case r.PauseTrainers() | r.CloseDownload():
                pass
            case _:
                answer = self._step(effect)
                seconds = STEP_S if isinstance(effect, r.TakeEntry | r.AdoptSnapshot) else 0.0
                self.node.later(seconds, lambda: self._feed(answer))

    # --- questions

    def _ask(self, question: r.Ask) -> None:
        source = self.swarm.nodes.get(question.peer)
        self.waiting.add(question.request)
        is_chunk = isinstance(question, r.AskChunk)
        assert not (is_chunk and question.peer in self.liars), "who gave a wrong chunk is asked again"
        if source is None:
            self._answer(0.1, r.AskFailed(question.request, "unknown peer"))
            return
        seconds = self.rng.uniform(0.02, 0.3)
        if is_chunk:
            seconds += CHUNK_BYTES / self.swarm.world.link(source.name, self.node.name).bytes_per_s
        self.node.later(seconds, lambda: self._arrives(source, question))

    def _arrives(self, source: Node, question: r.Ask) -> None:
        world, me = self.swarm.world, self.node.name
        there, back = world.link(me, source.name), world.link(source.name, me)
        if there.is_cut or back.is_cut or source.is_paused or self.rng.random() < back.loss:
            if self.rng.random() < 0.5:
                self._answer(1.0, r.AskFailed(question.request, "stream broke"))
            return  # else silence: the deadline ends it
        if source.is_up:
            late = source.mischief.late(self, question) if source.mischief is not None else 0.0
            self._answer(late, self._truth(source, question))
        else:
            self._answer(0.1, r.AskFailed(question.request, "not there"))

    def _answer(self, seconds: float, answer: r.Answer) -> None:
        if seconds:
            self.node.later(seconds, lambda: self._answer(0.0, answer))
        elif answer.request in self.waiting:
            self.waiting.discard(answer.request)
            if isinstance(answer, r.ChunkCame):
                self.node.disk.chunks[self.key].add(self.chunk_of[answer.request])
            self._feed(answer)

    def _truth(self, source: Node, question: r.Ask) -> r.Answer:
        number, log, mischief = question.request, _log_of(source), source.mischief
        is_liar = mischief is not None and mischief.gives_wrong_bytes
        match question:
            case r.AskEntries():
                found = log[question.first : question.first + (ANSWER_MAX if mischief is None else mischief.page)]
                return r.EntriesCame(number, tuple(stored.signed for stored in found))
            case r.AskSnapshots():
                return r.SnapshotsListed(number, self._snapshots_of(log))
            case r.AskOffer():
                return self._offer(question, log, is_liar=is_liar)
            case r.AskChunk() if is_liar and self.rng.random() < 0.5:
                return r.AskFailed(number, "wrong hash", is_final=True, is_wrong=True)
            case r.AskChunk():
                self.chunk_of[number] = question.number
                return r.ChunkCame(number)
            case r.AskPayload():
                return self._payload(question, log)

    def _snapshots_of(self, log: list[Stored]) -> tuple[int, ...]:
        kept = self.swarm.serves_last
        return () if kept is None else tuple(n for n in range(SNAPSHOT_EVERY, len(log) + 1, SNAPSHOT_EVERY))[-2:]

    def _offer(self, question: r.AskOffer, log: list[Stored], *, is_liar: bool) -> r.Answer:
        entry = question.certified_by
        height = int(entry.round)
        head = entry_hash(log[height - 1].signed.entry) if 0 < height <= len(log) else b""
        if head != entry.parent:
            return r.AskFailed(question.request, "of another chain", is_final=True)
        content = log[:height]
        if not is_liar and self._state_of(content) != entry.state_digest:
            return r.AskFailed(question.request, "its index is of another state", is_final=True, is_wrong=True)
        if is_liar and self.rng.random() < 0.5:
            last = content[-1]
            content = [*content[:-1], Stored(last.signed, {place: data[::-1] for place, data in last.payload.items()})]
        key = sha(b"".join(hashes_ for stored in content for hashes_ in hashes(stored.payload)))
        self.contents[key] = content
        return r.OfferCame(question.request, r.Offer(height, key, (CHUNK_BYTES,) * NUM_CHUNKS))

    def _payload(self, question: r.AskPayload, log: list[Stored]) -> r.Answer:
        entry, kept = question.signed.entry, self.swarm.serves_last
        mischief = self.swarm.nodes[question.peer].mischief
        is_withheld = mischief is not None and mischief.kind == "withholds"
        is_kept = not is_withheld and (kept is None or entry.round >= len(log) - kept)
        if is_kept and entry.round < len(log) and hashes(log[entry.round].payload) == entry.result_hashes:
            self.payloads[question.request] = log[entry.round].payload
            return r.PayloadCame(question.request)
        return r.AskFailed(question.request, "not_found", is_final=True)

    # --- steps

    def _step(self, step: r.Step) -> r.StepDone:
        disk = self.node.disk
        match step:
            case r.Rebuild():
                self.digest = disk.chain(self.node.sums).state_digest
                return r.Rebuilt(self.digest)
            case r.ReadOwn():
                own = [stored.signed for stored in disk.log[step.fork :]]
                missing = self._missing(step.fork)
                few = missing if len(missing) <= r.MISSING_MAX else ()
                base = _view_at(disk, step.fork)
                final = num_final(own, base, self.swarm.limits, disk.adopted)
                return r.OwnRead(tuple(signed.entry for signed in own), not missing, base, final, few)
            case r.CheckBranch():
                return r.BranchChecked(self._problem_of(step))
            case r.RestorePayload():
                assert hashes(self.payloads.pop(step.request)) == step.signed.entry.result_hashes
                disk.restored.add(entry_hash(step.signed.entry))
                return r.PayloadRestored()
            case r.LeaveOwn():
                self._leave_own(step)
                return r.OwnLeft()
            case r.OpenDownload():
                self.key, self.chunk_of = step.offer.key, {}
                return r.DownloadOpened(frozenset(disk.chunks.setdefault(step.offer.key, set())))
            case r.FinishDownload():
                assert len(disk.chunks.pop(self.key)) == NUM_CHUNKS, "published before it was whole"
                return r.DownloadFinished()
            case r.AdoptSnapshot():
                return self._adopt(step)
            case r.TakeEntry():
                return self._take(step)
            case r.TurnBack():
                return self._turn_back(step)

    def _missing(self, fork: int) -> tuple[SignedEntry, ...]:
        """Whose payloads retention has dropped on the way to the fork; a snapshot leads to the newest ones."""
        log, kept = self.node.disk.log, self.swarm.serves_last
        if kept is None or fork >= len(log) - kept:
            return ()
        below = [stored.signed for stored in log[:fork]]
        return tuple(signed for signed in below if entry_hash(signed.entry) not in self.node.disk.restored)

    def _problem_of(self, step: r.CheckBranch) -> str:
        try:
            check_branch(step.branch, step.base, self.swarm.limits, self.node.site.keys)
        except WireError as error:
            return str(error)
        return ""

    def _leave_own(self, step: r.LeaveOwn) -> None:
        node, branch = self.node, step.branch
        self.own = node.disk.log[branch.fork :]
        entries = [stored.signed.entry for stored in self.own]
        in_flight = step.in_flight.contribution.phase if step.in_flight is not None else None
        for phase in dropped_phases(node.name, entries, branch, step.reverted):
            if phase != in_flight:
                self.swarm.ledger.reclaimed(node.name, phase)
        self.swarm.world.log(f"{node.name} rolls back {len(entries)} entries")
        if step.reverted:
            self.swarm.takes_back(node, branch.fork, step.reverted)
            if in_flight is not None:
                self.swarm.ledger.lost(node.name, in_flight)
                node.offered = None
        if not branch.entries:
            self.own = []
            node.disk.roll_back(branch.fork)
            self.digest = Digest(entries[0].state_digest)
            return
        if not step.reverted:
            self.swarm.leaves(node, branch, is_adopted=step.is_adopted)
        node.disk.set_aside(branch.fork)
        self.digest = Digest(entries[0].state_digest)

    def _adopt(self, step: r.AdoptSnapshot) -> r.StepDone:
        """The digest of what was downloaded must be the one that was voted on."""
        content = self.contents[step.offer.key]  # a whole state: what all entries from genesis on lead to
        digest = self._state_of(content)
        if digest != step.certified_by.state_digest:
            return r.AdoptRefused(f"snapshot {step.offer.round} is not the state that was voted on", is_false=True)
        skipped = content[len(content) - len(step.skipped) :]
        for signed, stored in zip(step.skipped, skipped, strict=True):
            self._append(Stored(signed, stored.payload), settlement(signed.entry, step.in_flight))
        self.digest = digest
        return r.Adopted()

    def _state_of(self, content: list[Stored]) -> Digest:
        digest = self.node.sums.genesis()
        try:
            for stored in content:
                digest = self.node.sums.applied(digest, stored.payload)
        except ValueError:
            return Digest(b"")  # whatever a liar's snapshot of such a state is
        return digest

    def _take(self, step: r.TakeEntry) -> r.StepDone:
        payload = self.payloads.pop(step.request)
        try:
            digest = self.node.sums.applied(self.digest, payload)
        except ValueError as error:
            return r.EntryRefused(str(error))
        self._append(Stored(step.signed, payload), step.settle)
        self.digest = digest
        return r.EntryTaken(digest)

    def _append(self, stored: Stored, settle: c.Settlement | None) -> None:
        name, entry = self.node.name, stored.signed.entry
        honest = {node.name: node for node in self.swarm.nodes.values() if node.mischief is None}
        if not any(contribution.peer in honest for contribution in entry.contributions):
            self.swarm.forged_at = self.swarm.world.now
        elif all(len(node.disk.log) <= entry.round for node in honest.values()):
            # A liar that never votes ends rounds too: the others get them from it, with their own work in them.
            self.swarm.rounds_finished += 1
        if entry_hash(entry) in self.order.reverted:
            raise Broken(f"R29: {self.node.name} takes entry {entry.round} again, which was taken back")
        self.node.disk.append(stored)
        self.swarm.ledger.committed(name, entry)
        self.swarm.ledger.taken(name, entry)
        if settle is not None:
            self.swarm.ledger.settled(name, settle.phase, is_included=True)
            self.node.offered = None

    def _turn_back(self, step: r.TurnBack) -> r.StepDone:
        node, ledger = self.node, self.swarm.ledger
        taken = node.disk.log[step.fork :]
        assert [stored.signed for stored in taken] == list(step.taken), "the machine and the log differ"
        entries = [stored.signed.entry for stored in self.own]
        self.swarm.world.log(f"{node.name} gives up the branch: {self.machine.status.problems[-1:]}")
        if step.is_kept:
            for phase in dropped_phases(node.name, entries, Branch(step.fork, step.taken)):
                ledger.reclaimed(node.name, phase)
        else:
            ledger.returns(node.name, entries, [stored.signed.entry for stored in taken])
            node.disk.roll_back(step.fork)
            node.disk.put_back()
        self.digest = node.disk.chain(node.sums).state_digest
        self._complete()
        return r.TurnedBack(self.digest)

    def _complete(self) -> None:
        self.own = []
        self.node.disk.clear_aside()
        self.swarm.ledger.recovered(self.node.name, [stored.signed.entry for stored in self.node.disk.log])

    # --- the end

    def _done(self, done: r.Done) -> None:
        if done.failure:
            self._finish(e.RecoveryFailed(done.failure, done.unconfirmed, done.unavailable, done.settled, done.overdue))
            self._give_up(done.unavailable)
            return
        self._complete()
        chain = self.node.disk.chain(self.node.sums)
        if chain.head != self.node.machine.chain.head:
            self.swarm.moved_at = self.swarm.world.now
        entries = [stored.signed for stored in self.node.disk.log]
        rounds = compared_rounds(self.before, [GENESIS, *(entry_hash(signed.entry) for signed in entries)])
        told = (done.settled, done.unavailable, done.unasked, done.in_part, tuple(entries[number] for number in rounds))
        self._finish(e.RecoveryFinished(chain, *told, added=done.added, overdue=done.overdue))

    def _finish(self, event: e.Event) -> None:
        self.node.is_recovering = False
        self.node.feed(event)

    def _give_up(self, unavailable: tuple[PeerId, ...]) -> None:
        """R22: whose branch was not to be had so often is not waited for any more, liar or not."""
        height = self.node.machine.height
        given_up = height.book.tips.unconfirmed & set(unavailable)
        self.swarm.ledger.taken_along.update((peer, int(height.round)) for peer in given_up)


def _log_of(source: Node) -> list[Stored]:
    """What this peer serves."""
    return source.disk.log if source.mischief is None else source.mischief.log(source)


def _view_at(disk: Disk, height: int) -> ChainView:
    entries = [stored.signed.entry for stored in disk.log[:height]]
    view = view_of(disk.first_view(GENESIS_DIGEST), entries, Digest(bytes(32)))
    return replace(view, run_id=RUN_ID)
