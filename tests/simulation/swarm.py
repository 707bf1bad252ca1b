"""All simulated peers, the network between them, and the end-of-run invariants.

Transfers are streams: they are asked for a destination, take time, may break, and are acknowledged.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dilocoxd.daemon.round.offers import OfferCheck
from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, PeerId, PhaseId
from dilocoxd.machines.exchange.facts import SegmentReceived, SegmentSent, TransferFailed
from dilocoxd.machines.exchange.orders import SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, Destination, Refusal
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, check_branch
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.wire.entry import Entry, Evidence, entry_hash
from tests.simulation.ledger import INCLUDED, RECLAIMED, Broken, Ledger
from tests.simulation.peer.arithmetic import Sums, make_sums
from tests.simulation.peer.disk import GENESIS_DIGEST, Disk, sha
from tests.simulation.peer.node import Node
from tests.simulation.peer.recovering import Recovery
from tests.simulation.peer.signing import keys_of
from tests.simulation.rules.watch import Accepts, Votes
from tests.simulation.world import World

SEGMENT_BYTES = 100
QUIET_S = 45.0
"""Without faults and new contributions all live peers agree within this time; sooner if nobody owes anything."""


def default_limits() -> RoundLimits:
    return RoundLimits(
        grace_max_s=10.0,
        ready_repeat_s=1.0,
        coordinator_patience_s=3.0,
        progress_timeout_s=6.0,
        vote_timeout_s=4.0,
        transfer_retry_s=0.3,
        recovery_retry_s=2.0,
    )


def quick_recovery() -> r.RecoveryLimits:
    return r.RecoveryLimits(answer_timeout_s=3.0, slowest_bytes_per_s=1e6, late_first_s=1.0)


class Listener(Protocol):
    """Hears what every machine does (tests/stories)."""

    def fed(self, node: Node, event: e.Event, commands: Sequence[c.Command]) -> None:
        """The round machine of `node` has handled this; its commands are carried out next."""

    def recovering(self, node: Node, event: r.RecoveryEvent | None, effects: Sequence[r.Effect]) -> None:
        """The same of its recovery machine. Without an event: it begins."""


@dataclass
class Swarm:
    """One simulation."""

    world: World
    sums_kind: tuple[Any, ...] = ("toy", 1, 3)
    """arithmetic.make_sums."""
    is_gathered: bool = False
    """Everybody gets all contributions and sums them itself (X11)."""
    has_files: bool = False
    """Logs and promises are real files."""
    probation_rounds: int = 0
    """An open run: who comes after the first entry is on probation (M11)."""
    limits: RoundLimits = field(default_factory=default_limits)
    recovery_limits: r.RecoveryLimits = field(default_factory=quick_recovery)
    tells_gone: bool = False
    """Peers have data ports: who crashes is found gone at once by whom it can be reached (D11.4)."""
    refused: set[PeerId] = field(default_factory=set)
    """Who was found gone although it lives."""
    serves_last: int | None = None
    """Payloads of so many newest entries are served, and snapshots; None: all payloads, no snapshots."""
    nodes: dict[PeerId, Node] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    is_training: bool = True
    has_liar: bool = False
    has_lost_disk: bool = False
    may_fork: bool = False
    """The schedule has a fault that can split the swarm; crashes, pauses and lost messages alone cannot.

    Unless all contributors of one branch are lost: Ledger.num_unexcused_forks."""
    is_dropped: Callable[[PeerId, e.RoundMessage], bool] = lambda source, message: False
    """Directed schedules lose messages of their choice."""
    votes_said: Votes = field(default_factory=dict)
    """For the rules that a peer keeps over its lives."""
    accepts_said: Accepts = field(default_factory=dict)
    rounds_finished: int = 0
    attempts_failed: int = 0
    recoveries: int = 0
    moved_at: float = 0.0
    """When a recovery last moved somebody, or somebody honest committed."""
    forged_at: float = -1e9
    """When a recovery last took an entry that nobody honest has a part in."""
    is_spoiled: Callable[[Node, Entry], bool] | None = None
    """Whether this peer finds no finite loss after this entry (R29); None: nobody ever does."""
    proves: Callable[[Node, Entry], tuple[PeerId, ...] | None] | None = None
    """Who this peer is certain made a false result of this entry, once it has found one (X13); None: it has not."""
    convictions: dict[PeerId, set[PeerId]] = field(default_factory=dict)
    """Who was found to have voted twice, and who said so."""
    reports: list[tuple[PeerId, c.ReportPeer]] = field(default_factory=list)
    listener: Listener | None = None
    offers: OfferCheck = field(default_factory=lambda: OfferCheck(keys_of("nobody"), 64))
    """At the edge of every peer."""

    def add(self, name: str, phase_s: float, *, is_training: bool = True) -> Node:
        node = Node(self, name, phase_s, is_training=is_training)
        self.nodes[node.name] = node
        return node

    def make_sums(self) -> Sums:
        sums = make_sums(self.sums_kind)
        sums.shape = replace(sums.shape, is_gathered=self.is_gathered)
        return sums

    def make_disk(self, name: str) -> Disk:
        if not self.has_files:
            return Disk(probation_rounds=self.probation_rounds)
        from tests.simulation.peer.files import FileDisk  # loads the daemon

        disk = FileDisk(name, self.make_sums().table)
        disk.probation_rounds = self.probation_rounds
        return disk

    def close(self) -> None:
        for node in self.nodes.values():
            node.disk.close()

    def dismantle(self) -> None:
        """All parts refer to each other in circles: taken apart, they go without the garbage collector."""
        for node in self.nodes.values():
            vars(node).clear()
        self.nodes.clear()
        self.world.heap.clear()

    # --- network

    def post(self, source: PeerId, target: PeerId, message: e.RoundMessage) -> None:
        node = self.nodes.get(target)
        if node is None or self.is_dropped(source, message):
            return
        mischief = self.nodes[source].mischief
        if mischief is None:
            self.world.deliver(source, target, functools.partial(self._arrives, source, node, message))
            return
        for said in mischief.messages(self.nodes[source], target, message):
            self.world.deliver(source, target, functools.partial(self._arrives, source, node, said))

    def _arrives(self, source: PeerId, node: Node, message: e.RoundMessage) -> None:
        if not node.is_up:
            return
        if problem := self.offers.problem(message):
            self.reported(node.name, c.ReportPeer(source, "bad_offer", problem))
            return
        sender = self.nodes[source]
        if (
            sender.is_up
            and not sender.is_paused
            and not node.is_paused
            and not self.world.link(node.name, source).is_cut
        ):
            sender.presence.heard(node.name)
        if node.is_paused:
            node.guarded(functools.partial(node.feed, e.MessageReceived(source, message)))()
        else:
            node.feed(e.MessageReceived(source, message))

    def transfer(self, source: Node, command: SendSegment) -> None:
        target = self.nodes[command.peer]
        if source.mischief is not None and source.mischief.drops_segments():
            return
        link = self.world.link(source.name, target.name)
        seconds = self.world.rng.uniform(0.5, 1.5) * SEGMENT_BYTES / link.bytes_per_s

        def fail(reason: str, after: float) -> None:
            source.later(after, lambda: source.feed(TransferFailed(command.peer, command.key, reason)))

        def done() -> None:
            key = command.key
            if (key.round, key.attempt) < source.cancelled_below:
                return
            if link.is_cut or not target.is_up or target.is_paused or self.world.rng.random() < link.loss:
                fail("stream broke", 2.0)
                return
            place = (key.pass_index, key.segment)
            worker = source.worker
            data = worker.outbox[place] if key.kind == KIND_CONTRIBUTION else worker.result[place]
            if source.mischief is not None:
                data = source.mischief.segment(data, target.name, is_result=key.kind == KIND_RESULT)
            where = target.machine.destination(source.name, key)
            if isinstance(where, Refusal) and not where.is_held:
                if where.is_transient:
                    fail(where.reason, 0.05)
                return
            if isinstance(where, Destination):
                if not where.takes(sha(data), command.root, command.proof):
                    return
                if where.slot is None:
                    target.worker.result[place] = data
                else:
                    target.worker.inbox[(where.slot, *place)] = data
                target.feed(SegmentReceived(source.name, key, sha(data), command.root))
            if self.world.rng.random() < link.loss:
                fail("acknowledgement lost", 2.0)
                return
            source.later(0.01, lambda: source.feed(SegmentSent(command.peer, key)))

        source.later(seconds, done)

    def connections_end(self, gone: Node) -> None:
        for node in self.nodes.values() if self.tells_gone else ():
            if node.is_up and node is not gone:
                node.presence.on_end(gone)

    def recover(self, node: Node, order: c.StartRecovery) -> None:
        self.recoveries += 1
        node.is_recovering = True
        node.recovery = Recovery(self, node, order)
        node.recovery.start()

    def note_taken_along(self, missed: Set[PeerId] = frozenset()) -> None:
        """Somebody has just gone, or is taken for dead: what those who have left had may be nowhere now."""
        running = [n for n in self.nodes.values() if n.is_up and n.mischief is None and n.name not in missed]
        self.ledger.takes_along([len(node.disk.log) for node in running])

    def leaves(self, node: Node, branch: Branch, *, is_adopted: bool) -> None:
        """R28: nobody leaves a final entry unless told."""
        own = [stored.signed.entry for stored in node.disk.log[branch.fork :]]
        told = node.told
        if is_adopted != (told is not None and any(entry_hash(s.entry) == told[1] for s in branch.entries)):
            raise Broken(f"R28: {node.name} leaves its branch as {'told' if is_adopted else 'nobody told'}")
        if not is_adopted and (left := self._final_since(node, branch.fork)):
            raise Broken(f"R28: {node.name} leaves {left} final entries by itself")
        self.ledger.rolls_back(node.name, own, [signed.entry for signed in branch.entries], is_adopted=is_adopted)

    def takes_back(self, node: Node, fork: int, reverted: Set[Digest]) -> None:
        """R29: only with the votes of a majority, counted again by the words of the rule."""
        log, certificates = node.disk.log, {m.entry_hash: m for m in node.disk.taken_back}
        own = [stored.signed.entry for stored in log[fork:]]
        for entry in own:
            if (digest := entry_hash(entry)) not in reverted:
                continue
            electorate = self._electorate(node, entry.round)
            voters = {vote.peer for vote in certificates[digest].votes} if digest in certificates else set()
            if not len(voters & electorate) > len(electorate) / 2:
                raise Broken(f"R29: {node.name} takes entry {entry.round} back with votes of {sorted(voters)}")
        if reverted.isdisjoint(map(entry_hash, own)):
            raise Broken(f"R29: {node.name} leaves entries that nobody has taken back")
        self.ledger.takes_back(node.name, own, reverted)

    def _electorate(self, node: Node, index: int, evidence: Sequence[Evidence] = ()) -> set[PeerId]:
        """Of whom more than half decide about the entry of this index, counted again by the words of R14 and R27."""
        entries = [stored.signed.entry for stored in node.disk.log[:index]]
        named = Counter(c.peer for entry in entries for c in entry.contributions)
        founders = {c.peer for entry in entries[:1] for c in entry.contributions}
        recent = {c.peer for entry in entries[-8:] for c in entry.contributions}
        recent = {peer for peer in recent if named[peer] >= self.probation_rounds or peer in founders}
        held = (*evidence, *(found for entry in entries[-64:] for found in entry.evidence))
        return recent - {found.peer for found in held} or recent

    def final_kept(self, node: Node, found: r.FinalKept) -> None:
        """R28: only for its own final entries a better branch is not taken."""
        if not self._final_since(node, found.branch.fork):
            raise Broken(f"R28: {node.name} has no final entry that the branch of {found.peer} lacks")
        node.kept_from[found.peer] = found

    def _final_since(self, node: Node, fork: int) -> int:
        """How many entries from `fork` on are final, counted again by the words of the rule."""
        log, limits, told = node.disk.log, self.limits, node.told
        found = fork
        for index in range(fork, len(log)):
            entry, behind = log[index].signed.entry, len(log) - 1 - index
            is_deep = limits.final_depth > 0 and behind >= min(limits.final_depth, 8 + index)
            before = self._electorate(node, index, entry.evidence)
            voters = {vote.peer for vote in log[index].signed.votes} & before
            is_voted = limits.final_depth > 0 and limits.has_majority_quorum
            is_voted = is_voted and len(voters) > 1 and len(voters) / len(before) > 2 / 3
            if is_deep or is_voted or (told is not None and told == (index + 1, entry_hash(entry))):
                found = index + 1
        return found - fork

    def convicted(self, by: PeerId, peer: PeerId) -> None:
        """R27: evidence is never held against who keeps its promises."""
        if self.nodes[peer].mischief is None and peer not in self.ledger.lost_logs:
            raise Broken(f"R27: {by} holds two votes against {peer}, which is honest")
        self.convictions.setdefault(peer, set()).add(by)

    def reported(self, by: PeerId, command: c.ReportPeer) -> None:
        self.reports.append((by, command))

    # --- invariants

    def is_settled(self) -> bool:
        """All that live stand on one head and nobody owes or expects anything any more."""
        return len(self._heads()) <= 1 and all(node.is_idle() for node in self._live())

    def check_quiet(self) -> None:
        """R-a, R-b, R-c, R-d once the network has been whole and quiet for a while.

        A peer may just have left its branch for a liar's, or be writing an entry: its log is judged when it is what the
        peer stands on again. For that it has as long as for all before.
        """
        self._check_agreement()
        self.world.run_until(self._is_at_rest, self.world.now + QUIET_S)
        self._check_agreement()
        live = self._live()
        if away := [f"{n.name}: {n.machine.status.waiting_for}" for n in live if not n.is_at_rest()]:
            raise Broken(f"R-c: logs that their peers do not stand on for {QUIET_S:g} s: {', '.join(away)}")
        for node in live:
            entries = [stored.signed.entry for stored in node.disk.log]
            self.ledger.check_chain(node.name, entries, self.liars())
            self.ledger.at_head(node.name, node.machine.chain.head, node.machine.chain.state_digest)
        self._check_included(live)
        for node in live:
            self._check_votes(node)
        if not self.may_fork and self.ledger.num_unexcused_forks():
            raise Broken(f"R-d: {self.ledger.num_unexcused_forks()} forks without a split, a lost disk or a liar")
        if self.limits.has_majority_quorum and not self.has_liar and not self.has_lost_disk:
            later = [
                number
                for number, found in self.ledger.entries.items()
                if len(found - self.ledger.reverted) > 1 and len(self.ledger.entries[0]) == 1
            ]
            if later:
                raise Broken(f"R-d: forks in rounds {later} although quorum = majority")
        self._check_acknowledged(live)

    def liars(self) -> set[PeerId]:
        """Who does not keep to the protocol."""
        return {node.name for node in self.nodes.values() if node.mischief is not None}

    def _live(self) -> list[Node]:
        """Who must keep every promise now."""
        return [n for n in self.nodes.values() if n.is_up and not n.is_paused and n.mischief is None]

    def _heads(self) -> set[Digest]:
        return {node.machine.chain.head for node in self._live()}

    def _is_at_rest(self) -> bool:
        return len(self._heads()) <= 1 and all(node.is_at_rest() for node in self._live())

    def _check_agreement(self) -> None:
        live, heads = self._live(), self._heads()
        if len(heads) > 1:
            where = ", ".join(f"{n.name}@{n.machine.chain.height}:{n.machine.status.waiting_for}" for n in live)
            raise Broken(f"R-c: {len(heads)} heads after quiet time: {where}")

    def _check_acknowledged(self, live: list[Node]) -> None:
        """R-d: what anybody had on a disk that was kept is in the chain, unless its owner reported a heavier chain."""
        if not live:
            return
        inside = {entry_hash(stored.signed.entry) for stored in live[0].disk.log}
        for node in live:
            reported = self.ledger.reported.get(node.name, set())
            commits = self.ledger.acknowledged.get(node.name, [])
            missing = [digest for digest in commits if digest not in inside and digest not in reported]
            if missing:
                raise Broken(f"R-d: {len(missing)} entries that {node.name} acknowledged are lost without a report")

    def _check_votes(self, node: Node) -> None:
        """What a peer serves to newcomers is acceptable to them."""
        base = node.disk.first_view(GENESIS_DIGEST)
        try:
            check_branch(Branch(0, tuple(s.signed for s in node.disk.log)), base, self.limits, node.site.keys)
        except WireError as error:
            raise Broken(f"R-c: nobody can take the chain of {node.name}: {error}") from error

    def _check_included(self, live: list[Node]) -> None:
        if not live:
            return
        inside = {(x.peer, x.phase) for s in live[0].disk.log for x in s.signed.entry.contributions}
        gone = {node.name for node in self.nodes.values() if node.is_lost or node.mischief is not None}
        gone |= self.ledger.lost_logs  # what only they had of a chain is gone
        for name, fate in self.ledger.fates.items():
            if fate == INCLUDED and name not in inside and name[0] not in gone:
                raise Broken(f"R-b: {name} was settled as included, but is in no entry")
            if fate == RECLAIMED and name in self._named_below(name[0]):
                raise Broken(f"R-b: {name} was put back into feedback, but is in the chain")

    def _named_below(self, peer: PeerId) -> set[tuple[PeerId, PhaseId]]:
        """What the log of this peer names, live or not: its books are those of its own chain. Away on another one (a
        liar that still takes the others' chain, or a dead peer), it withdraws from its feedback what it comes back to.
        """
        log = self.nodes[peer].disk.log
        return {(x.peer, x.phase) for stored in log for x in stored.signed.entry.contributions}
