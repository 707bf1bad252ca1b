"""One line for each question, step and answer of the recovery machine (protocol/09-catching-up.md). Pure."""

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from dilocoxd.ids import PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.machines.recovery.rollback import dropped_phases
from dilocoxd.wire.entry import Entry, SignedEntry, entry_hash
from tests.stories.phrases import names, short

WOKE: Final = "wakes: a question has waited for too long"


def entries(found: Sequence[SignedEntry] | Sequence[Entry]) -> str:
    """Rounds and hashes."""
    plain = [one.entry if isinstance(one, SignedEntry) else one for one in found]
    listed = ", ".join(f"{entry.round} {short(entry_hash(entry))}" for entry in plain[:6])
    return f"entries {listed}{', ...' if len(plain) > 6 else ''}" if plain else "no entries"


def of_answer(event: r.RecoveryEvent, asked: Mapping[int, r.Ask]) -> str:
    """What enters a recovery machine. `asked`: questions by number. Empty: a step is done as it was ordered."""
    match event:
        case r.Tick():
            return WOKE
        case r.EntriesCame():
            return f"<- {asked[event.request].peer}: {entries(event.entries)}"
        case r.SnapshotsListed():
            rounds = " ".join(map(str, event.rounds))
            return f"<- {asked[event.request].peer}: snapshots of {f'rounds {rounds}' if rounds else 'no round'}"
        case r.OfferCame():
            offer = event.offer
            return f"<- {asked[event.request].peer}: snapshot of round {offer.round}, {len(offer.chunk_bytes)} chunks"
        case r.ChunkCame():
            return f"<- {asked[event.request].peer}: {_wanted(asked[event.request])}"
        case r.PayloadCame():
            return f"<- {asked[event.request].peer}: {_wanted(asked[event.request])}"
        case r.AskFailed():
            question = asked[event.request]
            return f"<- {question.peer}: no {_wanted(question)}, {event.reason}"
        case r.BranchChecked():
            return f"<- the branch is not acceptable: {event.problem}" if event.problem else ""
        case r.AdoptRefused() | r.EntryRefused() | r.RebuildRefused():
            return f"<- {event.reason}"
        case r.EntryTaken():
            return f"<- state {short(event.state_digest)}"
        case r.Rebuilt() | r.OwnRead() | r.OwnLeft() | r.DownloadOpened() | r.DownloadFinished():
            return ""
        case r.Adopted() | r.TurnedBack() | r.PayloadRestored():
            return ""
        case _:
            assert_never(event)


def _wanted(question: r.Ask) -> str:
    match question:
        case r.AskEntries():
            return f"entries from {question.first} on"
        case r.AskSnapshots():
            return "list of snapshots"
        case r.AskOffer():
            return f"snapshot that entry {question.certified_by.round} was voted on"
        case r.AskChunk():
            return f"chunk {question.number}"
        case r.AskPayload():
            return f"payload of entry {question.signed.entry.round}"
        case _:
            assert_never(question)


def of_effects(me: PeerId, effects: Sequence[r.Effect]) -> list[str]:
    """What a recovery machine orders; chunks asked of one peer on one line."""
    lines: list[str] = []
    chunks: dict[PeerId, list[int]] = {}
    for effect in effects:
        if isinstance(effect, r.AskChunk):
            chunks.setdefault(effect.peer, []).append(effect.number)
    for effect in effects:
        if isinstance(effect, r.AskChunk):
            if wanted := chunks.pop(effect.peer, []):
                lines.append(f"-> {effect.peer}: chunk{'s' if len(wanted) > 1 else ''} {' '.join(map(str, wanted))}?")
        elif text := _of_effect(me, effect):
            lines.append(text)
    return lines


def _of_effect(me: PeerId, effect: r.Effect) -> str:
    match effect:
        case r.AskEntries() | r.AskSnapshots() | r.AskOffer() | r.AskChunk() | r.AskPayload():
            return f"-> {effect.peer}: {_wanted(effect)}?"
        case r.Cancel() | r.ReadOwn() | r.CheckBranch() | r.CloseDownload() | r.PauseTrainers():
            return ""
        case r.Rebuild():
            return "-> own disk: the state of our log"
        case r.RestorePayload():
            return f"-> own disk: payload of entry {effect.signed.entry.round}"
        case r.LeaveOwn():
            back = [str(phase) for phase in dropped_phases(me, effect.own, effect.branch)]
            work = f"; phase {' '.join(back)} goes back into the feedback" if back else ""
            return f"== leaves its own {entries(effect.own)}{work}"
        case r.OpenDownload() | r.FinishDownload():
            return ""
        case r.AdoptSnapshot():
            return f"== loads the snapshot of round {effect.offer.round} and skips {len(effect.skipped)} entries"
        case r.TakeEntry():
            owed = f", settles phase {effect.settle.phase}" if effect.settle is not None else ""
            return f"== takes entry {effect.signed.entry.round} {short(entry_hash(effect.signed.entry))}{owed}"
        case r.TurnBack():
            return _turned_back(me, effect)
        case r.ForgetOwn():
            return "== the branch is complete; what was set aside is dropped"
        case r.FinalKept():
            return f"!! stays: {effect.num_final} of its own {entries(effect.own)} are final, {effect.peer} lacks them"
        case r.SourceDropped():
            return f"!! asks {effect.peer} for no more chunks: {effect.reason}"
        case r.Done():
            return f"== gives up: {effect.failure}; false: {names(effect.unconfirmed)}" if effect.failure else ""
        case _:
            assert_never(effect)


def _turned_back(me: PeerId, effect: r.TurnBack) -> str:
    if effect.is_kept:
        back = dropped_phases(me, effect.own, Branch(effect.fork, effect.taken))
        return f"== keeps the part that it took: {entries(effect.taken)}; owed again: {len(back)} phases"
    return f"== turns back: its own {entries(effect.own)} are the chain again"
