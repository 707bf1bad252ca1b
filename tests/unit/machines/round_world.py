"""Parts of the round machine without the machine: a height with a book of peers, messages and votes of others."""

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits, VoteKeys
from dilocoxd.machines.peers.standing import PeerBook
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.height import Height, OwnSite, Terms
from dilocoxd.machines.round.inputs import PhaseOffered
from dilocoxd.machines.round.locks import HeldLock
from dilocoxd.machines.round.timers import Mark, Timers
from dilocoxd.wire.entry import Contribution, Entry, Evidence, Signature, SignedVote, VotedEntry, entry_hash
from dilocoxd.wire.messages import Lock, Propose, Ready, Vote

ME, B, C, D = (PeerId(name) for name in ("me", "pB", "pC", "pD"))
RUN = RunId("run-0123456789abcdef")
HEAD, BITS = Digest(b"h" * 32), Digest(b"s" * 32)
LIMITS = RoundLimits(grace_min_s=0.5, grace_max_s=4.0)
SHAPE = PayloadShape(1, (10, 10))
SIGNED = Signature(b"k", b"s")
HASHES = (Digest(b"1" * 32), Digest(b"2" * 32))
START = Monotonic(100.0)


def keys() -> VoteKeys:
    """Everything is signed, and every signature is right."""
    return VoteKeys(
        HEAD, lambda what: SignedVote(ME, what.attempt, 0, SIGNED), lambda peer, signature, text: signature == SIGNED
    )


def chain_at(height: int = 3) -> ChainView:
    heads = tuple(Digest(bytes([index]) * 32) for index in range(height - 1))
    return ChainView(RUN, RoundIndex(height), HEAD, BITS, heads=(*heads, HEAD))


def view(peer: PeerId, *, is_live: bool = True, height: int = 3, head: Digest = HEAD) -> PeerView:
    return PeerView(peer, is_live, True, RoundIndex(height), head)


def terms(limits: RoundLimits = LIMITS) -> Terms:
    return Terms(Ourselves(ME, RUN, HEAD, keys()), SHAPE, limits)


def height_of(*others: PeerId, limits: RoundLimits = LIMITS) -> Height:
    """Round 3 at its beginning, with these peers live at our head."""
    chain, book = chain_at(), PeerBook(ME, limits)
    book.see([view(peer) for peer in others], chain, START)
    return Height(terms(limits), OwnSite(Inbox(63)), book, chain, START)


def process() -> Timers:
    """A process that runs since long."""
    timers = Timers()
    timers.start(Mark.PROCESS, Monotonic(0.0))
    return timers


def contribution(peer: PeerId, phase: int = 0) -> Contribution:
    return Contribution(peer, PhaseId(phase), RoundIndex(3), 5, 10, bytes(32))


def ready(offered: PeerId | None = None, attempt: int = 0, phase: int = 0, lock: Lock | None = None) -> Ready:
    given = contribution(offered, phase) if offered is not None else None
    return Ready(RoundIndex(3), Attempt(attempt), HEAD, BITS, given, SIGNED if given is not None else None, lock, 0)


def offer(height: Height, now: Monotonic = START) -> None:
    """We have a contribution, and say so."""
    height.own.offer = PhaseOffered(contribution(ME), HASHES, SIGNED)
    height.say(ME, height.ready_message(), now)


def proposal(*group: PeerId, observers: tuple[PeerId, ...] = (), attempt: int = 0) -> Propose:
    given = tuple(contribution(peer) for peer in sorted(group))
    offers, owners = (SIGNED,) * len(given), (0, len(given) - 1)
    return Propose(RoundIndex(3), Attempt(attempt), HEAD, BITS, given, offers, observers, owners, 0, 0, 0, (), ())


def entry_of(*group: PeerId) -> Entry:
    given = tuple(contribution(peer) for peer in sorted(group))
    return Entry(RUN, RoundIndex(3), HEAD, BITS, given, HASHES, 0, 0, 0, (), ())


def held_of(*group: PeerId, observers: tuple[PeerId, ...] = (), results_held: bool = True) -> HeldLock:
    entry = entry_of(*group)
    voters = tuple(sorted(group))
    return HeldLock(Attempt(0), entry, entry_hash(entry), voters, results_held, (SIGNED,) * len(voters), ME, observers)


def vote_for(peer: PeerId, held: HeldLock, *, is_genuine: bool = True) -> Vote:
    signature = SIGNED if is_genuine else Signature(b"k", b"false")
    return Vote(RoundIndex(3), HEAD, held.entry_hash, SignedVote(peer, held.attempt, 0, signature))


def against(peer: PeerId, round_index: int = 3, signed: bytes = SIGNED.value) -> Evidence:
    """Two votes of this peer in attempt 0 on HEAD, for entries of the hashes in HASHES."""
    first, second = (VotedEntry(digest, 7, signed) for digest in HASHES)
    return Evidence(peer, SIGNED.public_key, RoundIndex(round_index), Attempt(0), HEAD, first, second)


def begin_exchange(
    height: Height, *group: PeerId, observers: tuple[PeerId, ...] = (), now: Monotonic = START
) -> Exchange:
    """We coordinate an exchange of this group."""
    exchange = Exchange(ME, SHAPE, proposal(*group, observers=observers), height.own.inbox)
    height.attempt.begin(ME, exchange, START)
    return exchange
