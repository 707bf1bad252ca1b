"""Liars that abuse trust: a chain of their own from genesis on, names of others, slow answers, seats that nobody fills.

Kinds of their own beside byzantine.KINDS: the histories of seeds whose schedules do not ask for them stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.chain import RECENT_ENTRIES
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.machines.peers.reverts import IN_ROUNDS_MAX, VOTE_DEPTH
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.comparison import ANSWER_BYTES
from dilocoxd.machines.recovery.snapshot_search import LIST_BYTES, OFFER_BYTES
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.wire.entry import Contribution, Entry, Signature, SignedEntry, entry_hash, offer_text, voted_for
from dilocoxd.wire.messages import Committed, Ready
from tests.simulation.peer.disk import GENESIS, RUN_ID, Payload, Stored, hashes, sha
from tests.simulation.peer.signing import offer_of, signature_of
from tests.simulation.schedules.byzantine import Mischief

if TYPE_CHECKING:
    from tests.simulation.peer.node import Node
    from tests.simulation.peer.recovering import Recovery

GHOSTS = ("silent_ghost", "ready_ghost")
"""Membership holds them live and training; the first says nothing else, the second is ready in each round, and that is
all: it accepts, proposes, sends and votes nothing."""
PLAIN = ("slow_donor", "poisons")
"""They say what an honest peer says."""
TRUST_KINDS = ("forks_at_genesis", "invents_contributors", *PLAIN, *GHOSTS)
FORGED_MAX = 4
"""So many branches one liar makes up. One without end is a swarm that follows the heaviest chain for ever."""
ENTRIES_MAX = 20
"""Of a lone branch: more than `replay_max`, so that a snapshot is sought for it."""
LAST_PHASE = PhaseId(2**62)
"""Whoever is named with it is in the chain for the last time."""
NEVER_S = float("inf")


class TrustMischief(Mischief):
    """One of TRUST_KINDS."""

    def __init__(self, kind: str, keys: VoteKeys, rng: random.Random) -> None:
        super().__init__(kind, keys, rng)
        self.num_forged = 0
        self.spoiled: set[Digest] = set()
        """Entries with its poison."""
        self.gives_wrong_bytes = kind not in (*PLAIN, *GHOSTS)
        if kind == "slow_donor":
            self.page = rng.choice([1, 1, 8])
        self.answers_left = rng.choice([1e9, 1e9, rng.randint(1, 6)])
        """A slow donor gives so many, and then nothing any more."""

    def drops_segments(self) -> bool:
        return self.kind in GHOSTS

    def log(self, node: Node) -> list[Stored]:
        """What it serves: what it has made up, if anything, else its chain as it is."""
        return self.forged or node.disk.log

    def late(self, recovery: Recovery, question: r.Ask) -> float:
        """Each answer of a slow donor comes just before its time is over, by the clock of who asked."""
        if self.kind != "slow_donor":
            return 0.0
        self.answers_left -= 1
        if self.answers_left < 0:
            return NEVER_S
        patience_s = recovery.swarm.recovery_limits.patience_s(_answer_bytes(question))
        return max(0.0, patience_s * self.rng.uniform(0.9, 0.99) / recovery.node.clock_rate - 0.4)

    def spoils(self, node: Node, entry: Entry) -> bool:
        """Whether this peer finds no finite loss behind this entry, for what the liar gave to it: a quarter of those
        that name it, as many as may be taken back, and only where most of those who vote about that are honest."""
        if node.mischief is not None:
            return False
        digest, number = entry_hash(entry), entry.round
        if digest in self.spoiled or len(self.spoiled) >= IN_ROUNDS_MAX or digest[0] >= 64:
            return digest in self.spoiled
        liars = node.swarm.liars()
        before = node.disk.log[max(0, number - RECENT_ENTRIES) : number]
        voters = {c.peer for stored in before for c in stored.signed.entry.contributions}
        if 2 * len(voters - liars) > len(voters) and any(c.peer in liars for c in entry.contributions):
            self.spoiled.add(digest)
        return digest in self.spoiled

    def messages(self, node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if self.kind == "silent_ghost":
            return []
        if self.kind == "ready_ghost":
            return [message] if isinstance(message, Ready) else []
        if self.kind in PLAIN or not isinstance(message, Ready):
            return [message]
        # At the end of a schedule nobody makes anything new any more: a new branch is something new.
        if node.swarm.is_training and self.num_forged < FORGED_MAX and (self.rng.random() < 0.03 or not self.forged):
            self.num_forged += 1
            self.forge(node)
        if not self.forged or self.rng.random() > 0.4:
            return [message]
        tip = self.forged[-1].signed.entry
        return [message, Committed(tip.round, entry_hash(tip))]

    def forge(self, node: Node) -> None:
        if self.kind == "invents_contributors":
            self._invent(node)
        else:
            count = self.rng.randint(1, ENTRIES_MAX)
            # One of seven is true to its end: such a branch is as good as any, and everybody takes it.
            false_from = count if self.rng.random() < 1 / 7 else self.rng.randrange(count)
            self.fork_at_genesis(node, count, false_from, is_even=self.rng.random() < 0.5)

    def fork_at_genesis(self, node: Node, count: int, false_from: int, *, is_even: bool) -> None:
        """`count` entries of its own from entry 0 on, together heavier than all that the others have, each as heavy as
        the next one or (not `is_even`) all but the last of one token; from one of them on the states never were."""
        wanted = 2 * node.machine.chain.weight + self.rng.randint(1, 3000)
        sums = node.swarm.make_sums()
        digest, made = sums.genesis(), _Branch(self.keys, node.name)
        for index in range(count):
            tokens = wanted // count + 1 if is_even else 1 if index + 1 < count else wanted
            number = 1000 * self.num_forged + index
            payload = _made_up(node, number)
            mine = Contribution(node.name, PhaseId(number), RoundIndex(index), 10, tokens, sha(b"root"))
            made.add(digest if index < false_from else Digest(sha(b"never was")), [mine], [offer_of(mine)], payload)
            try:
                digest = sums.applied(digest, payload)
            except ValueError:
                false_from = index  # it does not decode: nobody gets further
        self.forged = made.stored

    def _invent(self, node: Node) -> None:
        """An entry beside or on the newest ones that names others too, with phases that they never offered; each offer
        is nobody's, the liar's, or one of an older phase."""
        log = node.disk.log
        start = max(0, len(log) - self.rng.randint(0, 2))
        chain = node.machine.chain
        digest = log[start].signed.entry.state_digest if start < len(log) else chain.state_digest
        others = [peer for peer in node.swarm.nodes if peer != node.name]
        named = sorted([node.name, *self.rng.sample(others, self.rng.randint(1, len(others)))])
        contributions, offers = [], []
        for peer in named:
            last = chain.last_phases.get(peer, -1)
            phase = PhaseId(self.rng.choice([LAST_PHASE, last + 1, last + 50]))
            claimed = Contribution(peer, phase, RoundIndex(start), 10, self.rng.randint(1000, 10**6), sha(b"root"))
            contributions.append(claimed)
            offers.append(offer_of(claimed) if peer == node.name else self._false_offer(log, node.name, claimed))
        made = _Branch(self.keys, node.name, log[:start], chain.ramps(named))
        made.add(Digest(digest), contributions, offers, _made_up(node, self.num_forged))
        self.forged = made.stored

    def _false_offer(self, log: Sequence[Stored], liar: PeerId, claimed: Contribution) -> Signature:
        older = [
            offer
            for stored in log
            for one, offer in zip(stored.signed.entry.contributions, stored.signed.offers, strict=True)
            if one.peer == claimed.peer
        ]
        by_liar = signature_of(liar, offer_text(GENESIS, claimed))
        return self.rng.choice([Signature(b"nobody", b"x" * 16), by_liar, *older[-2:]])


@dataclass
class _Branch:
    """Entries that nobody but the liar has voted for, on a part of a true chain."""

    keys: VoteKeys
    liar: PeerId
    stored: list[Stored] = field(default_factory=list)
    ramps: tuple[int, ...] = ()

    def add(self, digest: Digest, named: Sequence[Contribution], offers: Sequence[Signature], payload: Payload) -> None:
        """The next entry, voted for on this state."""
        below = self.stored[-1].signed.entry if self.stored else None
        entry = Entry(
            run_id=RUN_ID,
            round=RoundIndex(len(self.stored)),
            parent=entry_hash(below) if below is not None else GENESIS,
            state_digest=digest,
            contributions=tuple(named),
            result_hashes=hashes(payload),
            lowrank_r=0,
            next_lowrank_r=0,
            next_inner_steps=0,
            parent_voters=tuple(c.peer for c in below.contributions) if below is not None else (),
            evidence=(),
            ramps=self.ramps,
        )
        vote = self.keys.sign(voted_for(entry, entry_hash(entry), Attempt(0)))
        self.stored = [*self.stored, Stored(SignedEntry(entry, tuple(offers), (vote,)), payload)]


def waits_for_its_operator(node: Node) -> bool:
    """It stands on an entry that spoiled the model, and that nobody takes back any more: it is too old (R29), or who
    could vote about it is gone with its disk."""
    swarm = node.swarm
    if swarm.is_spoiled is None:
        return False
    entries = [stored.signed.entry for stored in node.disk.log]
    bad = [entry.round for entry in entries if swarm.is_spoiled(node, entry)]
    return bool(bad) and (swarm.has_lost_disk or bad[0] < len(entries) - VOTE_DEPTH)


def _made_up(node: Node, number: int) -> Payload:
    shape = node.sums.shape
    text = f"{node.name} {number}".encode()
    return {(p, s): sha(text)[:16] for p in range(shape.num_passes) for s in range(shape.num_segments)}


def _answer_bytes(question: r.Ask) -> int:
    """Of the largest answer, which sets the time that it has; a chunk or a payload is small here."""
    match question:
        case r.AskEntries():
            return ANSWER_BYTES
        case r.AskSnapshots():
            return LIST_BYTES
        case r.AskOffer():
            return OFFER_BYTES
        case _:
            return 0
