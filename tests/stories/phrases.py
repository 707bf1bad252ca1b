"""One line for each message, event and order of the round machine, in the words of protocol/06-rounds.md. Pure.

(3, 1) is round 3, attempt 1; a hash is its first four hex digits. An empty text: nothing that a reader must know.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from dilocoxd.machines.exchange.facts import (
    PassPrepared,
    Reduced,
    ReduceFailed,
    SegmentReceived,
    SegmentSent,
    TransferFailed,
)
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass, OrderReduce, SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, SegmentKey
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.wire.entry import Contribution
from dilocoxd.wire.messages import (
    Abandon,
    Accept,
    Accuse,
    Committed,
    Leaving,
    Lock,
    Propose,
    ProposeCommit,
    Ready,
    ResultHashes,
    TakeBack,
    Vote,
)


def short(digest: bytes) -> str:
    """First four hex digits."""
    return digest.hex()[:4]


def names(peers: Iterable[str]) -> str:
    """Sorted, with commas; "nobody" if there are none."""
    return ", ".join(sorted(peers)) or "nobody"


def offered(contribution: Contribution) -> str:
    """Which phase of whom, how heavy, how old."""
    return f"phase {contribution.phase} ({contribution.tokens} tokens, base {contribution.base_round})"


def of_lock(lock: Lock) -> str:
    """The entry that a peer is locked on."""
    held = "" if lock.results_held else ", payload not held"
    return f"locked on {short(lock.entry_hash)} of attempt {lock.attempt}{held}"


def of_message(message: e.RoundMessage) -> str:
    """What a message says."""
    match message:
        case Ready():
            offer = "nothing to offer" if message.contribution is None else offered(message.contribution)
            lock = "" if message.lock is None else f", {of_lock(message.lock)}"
            return f"Ready ({message.round}, {message.attempt}), {offer}{lock}"
        case Propose():
            observers = f"; observes: {names(message.observers)}" if message.observers else ""
            phases = ", ".join(f"{one.peer} (phase {one.phase})" for one in message.contributions)
            return f"Propose ({message.round}, {message.attempt}): {phases}{observers}; {_owners(message)}"
        case ProposeCommit():
            what = f"finish {short(message.lock.entry_hash)} of attempt {message.lock.attempt}"
            return f"ProposeCommit ({message.round}, {message.attempt}): {what}, voters {names(message.voters)}"
        case Accept():
            return f"Accept ({message.round}, {message.attempt}) of the proposal of {message.coordinator}"
        case Vote():
            return f"Vote ({message.round}, {message.attempt}) for {short(message.entry_hash)}"
        case ResultHashes():
            held = " ".join(short(digest) for digest in message.hashes)
            return f"ResultHashes ({message.round}, {message.attempt}): {held}"
        case Abandon():
            blames = f"; blames {names(message.blames)}" if message.blames else ""
            return f"Abandon ({message.round}, {message.attempt}): {message.reason}{blames}"
        case Committed():
            return f"Committed entry {message.round}, {short(message.entry_hash)}"
        case Leaving():
            return f"Leaving in round {message.round}: {message.reason}"
        case Accuse():
            where = f"({message.evidence.round}, {message.evidence.attempt})"
            return f"Accuse {message.evidence.peer}, who voted twice in {where}"
        case TakeBack():
            whose = names(vote.peer for vote in message.votes)
            return f"TakeBack entry {message.round}, {short(message.entry_hash)}: votes of {whose}"
        case _:
            assert_never(message)


def _owners(propose: Propose) -> str:
    """Who reduces which segments."""
    peers = [one.peer for one in propose.contributions]
    owned = {peer: [s for s, owner in enumerate(propose.owners) if owner == i] for i, peer in enumerate(peers)}
    parts = [f"{peer} reduces {_list(segments)}" for peer, segments in owned.items() if segments]
    return ", ".join(parts) if parts else "owners out of range"


def _list(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def of_event(event: e.Event, *, change: str = "") -> str:
    """What enters a machine. `change`: what a `PeersChanged` changes."""
    match event:
        case e.Started():
            return "starts"
        case e.PeersChanged():
            return f"learns from membership: {change or 'nothing new'}"
        case e.PhaseOffered():
            return f"offers {offered(event.contribution)}"
        case e.MessageReceived():
            return f"<- {event.peer}: {of_message(event.message)}"
        case SegmentReceived():
            return f"<- {event.peer}: {_segments([event.key])}"
        case SegmentSent():
            return f"hears that {event.peer} holds {_segments([event.key])}"
        case TransferFailed():
            return f"could not send {event.peer} {_segments([event.key])}: {event.reason}"
        case Reduced():
            return f"<- worker: segment {event.segment} is reduced, {short(event.sha256)}"
        case ReduceFailed():
            return f"<- worker: {event.detail}"
        case PassPrepared():
            return "<- worker: the results decode"
        case e.EntryFalse():
            whose = f" of {names(event.owners)}" if event.owners else ""
            return f"a result{whose} in entry {event.round}, {short(event.entry_hash)}, is false"
        case e.EntryPersisted():
            return f"<- disk: entry {event.round} is written"
        case e.StoreFailed():
            return f"<- disk: {event.detail}"
        case e.EntryApplied():
            return f"<- worker: entry {event.round} is applied, new state {short(event.state_digest)}"
        case e.RecoveryFinished():
            return f"<- recovery: now at height {event.chain.height}, head {short(event.chain.head)}"
        case e.RecoveryFailed():
            unconfirmed = f"; false: {names(event.unconfirmed)}" if event.unconfirmed else ""
            unavailable = f"; not to be had: {names(event.unavailable)}" if event.unavailable else ""
            return f"<- recovery: in vain, {event.reason}{unconfirmed}{unavailable}"
        case e.BranchAdopted():
            return f"<- operator: adopt the branch of {names(event.peers)}"
        case e.LeaveRequested():
            return "<- operator: leave"
        case e.DeadlineReached():
            return "wakes: a deadline has passed"
        case _:
            assert_never(event)


def of_commands(commands: Sequence[c.Command]) -> list[str]:
    """What a machine orders: one message to several peers, streams to one peer, and reductions, each on one line."""
    lines: list[str] = []
    sent: list[c.Send] = [command for command in commands if isinstance(command, c.Send)]
    streams: dict[str, list[SegmentKey]] = {}
    for command in commands:
        if isinstance(command, SendSegment):
            streams.setdefault(command.peer, []).append(command.key)
    reduced = [command for command in commands if isinstance(command, OrderReduce)]
    for command in commands:
        if isinstance(command, c.Send):
            targets = [one.peer for one in sent if one.message == command.message]
            sent = [one for one in sent if one.message != command.message]
            if targets:
                lines.append(f"-> {names(targets)}: {of_message(command.message)}")
        elif isinstance(command, SendSegment):
            if keys := streams.pop(command.peer, []):
                lines.append(f"-> {command.peer}: {_segments(keys)}")
        elif isinstance(command, OrderReduce):
            if command is reduced[0]:
                segments = _list(order.segment for order in reduced)
                lines.append(f"-> worker: reduce {segments} of {names(command.peers)}")
        elif text := _of_command(command):
            lines.append(text)
    return lines


def _segments(keys: Sequence[SegmentKey]) -> str:
    parts = []
    for kind, word in ((KIND_CONTRIBUTION, "contribution"), (KIND_RESULT, "result")):
        if found := sorted({key.segment for key in keys if key.kind == kind}):
            parts.append(f"{word}, segment{'s' if len(found) > 1 else ''} {_list(found)}")
    return "; ".join(parts)


def _of_command(command: c.Command) -> str:
    match command:
        case c.Broadcast():
            return f"-> all: {of_message(command.message)}"
        case c.PersistPromise():
            voted = "" if command.promise.entry is None else ", with the vote and its payload"
            return f"-> disk: promise ({command.promise.round}, {command.promise.attempt}){voted}"
        case c.PersistReverts():
            return f"-> disk: {len(command.taken_back)} entries were taken back"
        case CancelTransfers() | c.Send() | SendSegment() | OrderReduce():
            return ""
        case OrderPass():
            return "-> worker: check that the results decode"
        case c.PersistEntry():
            entry = command.signed.entry
            return f"-> disk: entry {entry.round} with the votes of {names(vote.peer for vote in command.signed.votes)}"
        case c.AbandonContribution():
            why = ", but voted for" if command.is_voted else ": all of it stays in the feedback"
            return f"-> worker: settle phase {command.phase}, not included{why}"
        case c.ApplyEntry(round_index, _, settle):
            settled = "" if settle is None else f"settle phase {settle.phase}, which is in it; then "
            return f"-> worker: {settled}apply entry {round_index}"
        case c.StartRecovery():
            return f"-> recovery: compare with {names(command.peers)}: {command.reason}"
        case c.ExtendRecovery():
            return f"-> recovery: ask {names(command.peers)}, too"
        case c.ReportPeer():
            return f"!! reports {command.peer}: {command.rule}, {command.detail}"
        case c.DoubleVoteFound(evidence):
            return f"!! has evidence: {evidence.peer} voted twice in ({evidence.round}, {evidence.attempt})"
        case c.RoundFinished():
            summary = command.summary
            whose = names(one.peer for one in summary.contributions)
            return f"== round {summary.round} is over: entry {short(summary.entry_hash)} of {whose}"
        case c.AttemptFailed():
            return f"!! attempt ({command.round}, {command.attempt}) fails: {command.reason}"
        case c.LeaveFinished():
            return f"== has left: {command.reason}"
        case _:
            assert_never(command)
