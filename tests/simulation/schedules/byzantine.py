"""Peers that break the protocol on purpose: what they send instead of what the honest machine in them wants to send.

Each kind is one way to lie; the honest peers must keep every invariant among themselves and go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dilocoxd.ids import Attempt, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.wire.entry import Contribution, Entry, SignedEntry, SignedVote, VoteFor, entry_hash, voted_for
from dilocoxd.wire.messages import Abandon, Committed, Lock, Propose, Ready, Vote
from tests.simulation.peer.disk import GENESIS, RUN_ID, Stored, hashes, sha
from tests.simulation.peer.signing import offer_of

if TYPE_CHECKING:
    from tests.simulation.peer.node import Node
    from tests.simulation.peer.recovering import Recovery

Mangle = Callable[[PeerId, RoundMessage], list[RoundMessage]]

KINDS = (
    "wrong_hash",
    "equivocates",
    "stalls",
    "never_votes",
    "replays",
    "lies_about_height",
    "jumps_attempts",
    "claims_too_much",
    "bad_proposals",
    "forged_votes",
    "blames_everybody",
    "invents_locks",
    "forges_a_branch",
    "withholds",
)


FORGERS = ("forges_a_branch", "withholds")
"""The second does not give the payloads of what it has made up."""


def unsigned(vote: SignedVote) -> SignedVote:
    """The same with a signature that nobody made."""
    return replace(vote, signature=replace(vote.signature, value=b"x"))


class Mischief:
    """Changes the outgoing traffic of one peer."""

    gives_wrong_bytes = True
    """Half of the chunks and snapshots that it gives are wrong."""
    page = 8
    """Entries in one of its answers."""

    def __init__(self, kind: str, keys: VoteKeys, rng: random.Random) -> None:
        self.kind = kind
        self.keys = keys
        self.rng = rng
        self.seen: list[RoundMessage] = []
        self.forged: list[Stored] = []

    def drops_segments(self) -> bool:
        return self.kind == "stalls"

    def late(self, recovery: Recovery, question: r.Ask) -> float:
        """Seconds until it answers a question of somebody who catches up."""
        return 0.0

    def chain(self, own: ChainView) -> ChainView:
        """What its heartbeats say."""
        if self.kind != "lies_about_height":
            return own
        return replace(own, height=RoundIndex(own.height + 1000), head=sha(b"nothing"))

    def segment(self, data: bytes, target: PeerId, *, is_result: bool) -> bytes:
        """An owner that gives different results to different peers."""
        if self.kind == "equivocates" and is_result:
            return sha(data + target.encode())[: len(data)].ljust(len(data), b"\0")
        return data

    def log(self, node: Node) -> list[Stored]:
        """The chain it serves to those who catch up: cut, forged or with other payloads."""
        log = node.disk.log
        if self.kind in FORGERS:
            return self.forged or log
        if not log:
            return log
        stored = log[-1]
        entry = stored.signed.entry
        vote = stored.signed.votes[0]
        forged = [
            replace(stored.signed, votes=(unsigned(vote),)),
            replace(stored.signed, entry=replace(entry, state_digest=sha(b"other"))),
            replace(stored.signed, votes=(replace(vote, peer=PeerId("nobody")),)),
        ]
        bad_payload = {place: data[::-1] + b"!" for place, data in stored.payload.items()}
        endings = [*(Stored(signed, stored.payload) for signed in forged), Stored(stored.signed, bad_payload)]
        return [*log[:-1], self.rng.choice(endings)]

    def forge(self, node: Node) -> None:
        """A branch of entries that only the liar has voted for: right at first, then on a state that never was."""
        log = node.disk.log
        start = max(0, len(log) - self.rng.randint(0, 2))
        self.forged = log[:start]
        below = log[start - 1].signed.entry if start else None
        parent = entry_hash(below) if below is not None else GENESIS
        voters = tuple(c.peer for c in below.contributions) if below is not None else ()
        digest = log[start].signed.entry.state_digest if start < len(log) else node.machine.chain.state_digest
        phases = [c.phase for stored in log for c in stored.signed.entry.contributions if c.peer == node.name]
        phase = max(phases, default=0) + 1000
        for index in range(self.rng.randint(1, 3)):
            places = [(p, s) for p in range(node.sums.shape.num_passes) for s in range(node.sums.shape.num_segments)]
            payload = {place: sha(bytes([index]))[:16] for place in places}
            is_false = index > 0 or self.rng.random() < 0.5
            contribution = Contribution(
                node.name, PhaseId(phase + index), RoundIndex(start), 10, self.rng.randint(1, 3000), sha(b"root")
            )
            entry = Entry(
                run_id=RUN_ID,
                round=RoundIndex(start + index),
                parent=parent,
                state_digest=sha(b"never was") if is_false else digest,
                contributions=(contribution,),
                result_hashes=hashes(payload),
                lowrank_r=0,
                next_lowrank_r=0,
                next_inner_steps=0,
                parent_voters=voters,
                evidence=(),
            )
            parent, voters = entry_hash(entry), (node.name,)
            vote = self.keys.sign(voted_for(entry, parent, Attempt(0)))
            offers = (offer_of(contribution),)
            self.forged = [*self.forged, Stored(SignedEntry(entry, offers, (vote,)), payload)]

    def messages(self, node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if self.kind in FORGERS and isinstance(message, Ready):
            # At the end of a schedule nobody makes anything new any more: a new branch is something new.
            if node.swarm.is_training and (self.rng.random() < 0.1 or not self.forged):
                self.forge(node)
            if not self.forged:
                return [message]
            tip = self.forged[-1].signed.entry
            claim = Committed(tip.round, entry_hash(tip))
            if self.kind == "withholds":
                return [claim]
            return [message, claim] if self.rng.random() < 0.3 else [message]
        self.seen = [*self.seen[-50:], message]
        method = getattr(self, f"_{self.kind}", None)
        return [message] if method is None else method(target, message)

    def _votes_twice(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        """Right first, so that it stops no round by that."""
        if not isinstance(message, Vote):
            return [message]
        return [message, *self._wrong_hash(target, message)]

    def _wrong_hash(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if not isinstance(message, Vote):
            return [message]
        wrong = sha(message.entry_hash)
        vote = self.keys.sign(VoteFor(message.round, message.attempt, message.parent, wrong))
        return [replace(message, entry_hash=wrong, vote=vote)]

    def _never_votes(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        return [] if isinstance(message, Vote) else [message]

    def _replays(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        return [message, self.rng.choice(self.seen), self.rng.choice(self.seen)]

    def _lies_about_height(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if isinstance(message, Ready) and self.rng.random() < 0.3:
            return [message, Committed(RoundIndex(message.round + self.rng.randint(0, 50)), sha(b"nothing"))]
        return [message]

    def _jumps_attempts(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if isinstance(message, Ready) and self.rng.random() < 0.3:
            return [replace(message, attempt=Attempt(message.attempt + self.rng.choice([1, 2, 60, 10**6])))]
        return [message]

    def _claims_too_much(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if isinstance(message, Ready) and message.contribution is not None:
            claimed = replace(message.contribution, tokens=2**47)
            return [replace(message, contribution=claimed, offer=offer_of(claimed))]
        return [message]

    def _bad_proposals(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if not isinstance(message, Propose):
            return [message]
        first = message.contributions[0]
        return [
            self.rng.choice(
                [
                    replace(message, owners=(99,) * len(message.owners)),
                    replace(
                        message, contributions=(replace(first, tokens=first.tokens + 1), *message.contributions[1:])
                    ),
                    replace(message, contributions=(first, *message.contributions)),
                    replace(message, lowrank_r=7),
                    replace(message, observers=()),
                ]
            )
        ]

    def _forged_votes(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if not isinstance(message, Vote):
            return [message]
        forged = replace(message.vote, peer=target)
        return [message, replace(message, vote=forged), replace(message, vote=unsigned(message.vote))]

    def _blames_everybody(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if isinstance(message, Ready):
            return [message, Abandon(message.round, message.attempt, "I do not like you", (target,))]
        return [message]

    def _invents_locks(self, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if isinstance(message, Ready) and message.attempt > 0:
            lock = Lock(Attempt(message.attempt - 1), sha(b"entry"), (target,), results_held=True)
            return [replace(message, lock=lock)]
        return [message]
