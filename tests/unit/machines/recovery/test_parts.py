"""The parts of a recovery, each alone: what it finds, and what it leaves to the machine."""

import re
from dataclasses import replace
from pathlib import Path

from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.chain import view_of
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.machines.recovery.comparison import Comparison
from dilocoxd.machines.recovery.outcomes import (
    UNNUMBERED,
    Asking,
    Better,
    Complete,
    Failed,
    NoSnapshot,
    NotBetter,
    SnapshotFound,
)
from dilocoxd.machines.recovery.own_chain import OwnChain
from dilocoxd.machines.recovery.progress import BranchProgress, Sources, donors_of
from dilocoxd.machines.recovery.questions import OpenQuestions
from dilocoxd.machines.recovery.snapshot_search import SnapshotSearch
from dilocoxd.machines.recovery.source_faults import SourceFaults
from dilocoxd.machines.recovery.states import DONE, MOVES, START
from dilocoxd.machines.round.outputs import InFlight
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.unit.daemon.chain.chain_maker import GENESIS, base_view
from tests.unit.machines.recovery.recovery_world import STATE_0, applied, grown

ROOT = Path(__file__).resolve().parents[4]
A, B, C = PeerId("A"), PeerId("B"), PeerId("C")
NOW = Monotonic(50.0)
LIMITS = r.RecoveryLimits()
COMMON = grown([], 4, b"common")
AHEAD = grown(COMMON, 3, b"x")
FORK = grown(COMMON[:2], 4, b"fork", tokens=100)
OFFER = r.Offer(5, b"key", (100, 100, 50))


def digest_of(log: list[SignedEntry]) -> Digest:
    digest = STATE_0
    for signed in log:
        digest = applied(digest, signed)
    return digest


def own_chain(log: list[SignedEntry] = COMMON, in_flight: InFlight | None = None) -> OwnChain:
    return OwnChain([GENESIS, *(entry_hash(s.entry) for s in log)], digest_of(log), in_flight)


def own_read(log: list[SignedEntry], fork: int, *, can_replay: bool = True) -> r.OwnRead:
    entries = [signed.entry for signed in log]
    return r.OwnRead(tuple(entries[fork:]), can_replay, view_of(base_view(), entries[:fork], Digest(bytes(32))))


def progress_of(
    log: list[SignedEntry], fork: int, chain: OwnChain, *, own: list[SignedEntry] | None = None, can_replay: bool = True
) -> BranchProgress:
    entries = tuple(signed.entry for signed in own or ())
    better = Better(A, Branch(fork, tuple(log[fork:])), entries, can_replay)
    return BranchProgress(better, chain, Sources(donors_of(A, (B, A)), frozenset({C}), LIMITS, lambda rank: 1000))


# --- the table


def test_states_of_the_protocol_are_those_of_the_code() -> None:
    text = (ROOT / "protocol" / "09-catching-up.md").read_text(encoding="utf-8")
    section = text.split("## States of one recovery")[1].split("\nL13.")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]

    def names(cell: str) -> set[str]:
        words = re.split(r"[,;]", re.sub(r"\([^)]*\)", "", cell))
        return {word.strip().replace(" a ", " ").replace(" ", "_") for word in words} - {""}

    said = {names(row[0]).pop(): names(row[2]) for row in rows}
    built = {state: set(moves.values()) - {state} for state, moves in MOVES.items()}
    assert said == built


def test_every_state_is_reached_and_only_the_end_is_left_for_nothing() -> None:
    assert {state for moves in MOVES.values() for state in moves.values()} == set(r.STATES) == set(MOVES) - {START}
    assert [state for state, moves in MOVES.items() if not moves] == [DONE]


# --- Comparison


def test_comparison_asks_until_the_branch_is_whole_and_weighs_before_votes_are_checked() -> None:
    comparison = Comparison(A, own_chain().heads, LIMITS.entries_max)
    (question,) = comparison.start(now=NOW).questions
    assert question.ask == r.AskEntries(UNNUMBERED, A, len(COMMON))
    (more,) = asking(comparison.on_answer(r.EntriesCame(1, tuple(AHEAD[4:])))).questions
    assert isinstance(more.ask, r.AskEntries) and more.ask.first == len(AHEAD)
    assert comparison.on_answer(r.EntriesCame(2, ())) == r.ReadOwn(4)
    read = own_read(COMMON, 4)
    assert comparison.on_step(read) == r.CheckBranch(Branch(4, tuple(AHEAD[4:])), read.base)
    assert comparison.on_step(r.BranchChecked("")) == Better(A, Branch(4, tuple(AHEAD[4:])), (), True)


def asking(outcome: object) -> Asking:
    assert isinstance(outcome, Asking)
    return outcome


def test_comparison_tells_a_false_chain_from_silence_and_from_one_that_is_not_better() -> None:
    comparison = Comparison(A, own_chain().heads, LIMITS.entries_max)
    assert comparison.on_answer(r.AskFailed(1, "silent")) == Failed("silent")
    gap = Comparison(A, own_chain().heads, LIMITS.entries_max).on_answer(r.EntriesCame(1, tuple(AHEAD[5:])))
    assert isinstance(gap, Failed) and gap.is_false
    lighter = Comparison(A, own_chain(FORK).heads, LIMITS.entries_max)
    lighter.on_answer(r.EntriesCame(1, ()))
    lighter.on_answer(r.EntriesCame(2, tuple(COMMON)))
    assert lighter.on_answer(r.EntriesCame(3, ())) == r.ReadOwn(2)
    assert lighter.on_step(own_read(FORK, 2)) == NotBetter()


# --- SnapshotSearch


def search_at_offers() -> SnapshotSearch:
    """Lists are in, the index of snapshot 5 is asked of A and B."""
    search = SnapshotSearch(AHEAD[5:], (A, B), LIMITS)
    lists = asking(search.start())
    assert [question.ask.peer for question in lists.questions] == [A, B]
    assert search.on_answer(r.AskSnapshots(1, A), r.SnapshotsListed(1, (4, 5, 9)), now=NOW) == Asking()
    offers = asking(search.on_answer(r.AskSnapshots(2, B), r.SnapshotsListed(2, (5,)), now=NOW))
    assert [q.ask for q in offers.questions] == [r.AskOffer(UNNUMBERED, peer, AHEAD[5].entry) for peer in (A, B)]
    return search


def test_search_takes_the_newest_snapshot_that_an_entry_certifies_from_all_who_have_it() -> None:
    search = search_at_offers()
    search.on_answer(r.AskOffer(3, A, AHEAD[5].entry), r.OfferCame(3, OFFER), now=NOW)
    outcome = search.on_answer(r.AskOffer(4, B, AHEAD[5].entry), r.OfferCame(4, OFFER), now=NOW)
    assert outcome == r.OpenDownload(OFFER)
    chunks = asking(search.on_step(r.DownloadOpened(frozenset()), now=NOW)).questions
    assert {(q.ask.peer, q.ask.number) for q in chunks if isinstance(q.ask, r.AskChunk)} == {(A, 0), (B, 1), (A, 2)}
    assert search.text == "snapshot 5 (0 B of 250 B, 0%)"
    search.on_answer(r.AskChunk(5, A, 0), r.ChunkCame(5), now=NOW)
    search.on_answer(r.AskChunk(6, B, 1), r.ChunkCame(6), now=NOW)
    assert search.on_answer(r.AskChunk(7, A, 2), r.ChunkCame(7), now=NOW) == r.FinishDownload(OFFER)
    assert search.on_step(r.DownloadFinished(), now=NOW) == SnapshotFound(OFFER, (A, B))


def test_search_says_why_there_is_no_snapshot_only_if_somebody_had_one() -> None:
    assert SnapshotSearch(AHEAD[5:], (), LIMITS).start() == NoSnapshot()
    search = search_at_offers()
    failed = r.AskFailed(3, "gone", is_final=True)
    assert search.on_answer(r.AskOffer(3, A, AHEAD[5].entry), failed, now=NOW) == Asking()
    assert search.on_answer(r.AskOffer(4, B, AHEAD[5].entry), failed, now=NOW) == NoSnapshot()
    search = search_at_offers()
    search.on_answer(r.AskOffer(3, A, AHEAD[5].entry), r.OfferCame(3, OFFER), now=NOW)
    search.on_answer(r.AskOffer(4, B, AHEAD[5].entry), failed, now=NOW)
    search.on_step(r.DownloadOpened(frozenset({0, 1})), now=NOW)
    wrong = r.AskFailed(5, "wrong hash", is_final=True, is_wrong=True)
    outcome = search.on_answer(r.AskChunk(5, A, 2), wrong, now=NOW)
    assert isinstance(outcome, NoSnapshot) and "A: wrong hash" in outcome.problem


def test_donor_that_is_silent_about_what_it_lists_is_asked_once_only() -> None:
    """H4: it delayed a newcomer by its patience for each round that it listed."""
    search = SnapshotSearch(COMMON[1:], (A, B), LIMITS)
    search.start()
    rounds = tuple(int(signed.entry.round) for signed in COMMON[1:])
    search.on_answer(r.AskSnapshots(1, A), r.SnapshotsListed(1, rounds), now=NOW)
    offers = asking(search.on_answer(r.AskSnapshots(2, B), r.SnapshotsListed(2, rounds[:1]), now=NOW))
    assert [question.ask.peer for question in offers.questions] == [A]
    silent = r.AskFailed(3, "no answer within 10 s")
    newest = COMMON[-1].entry
    after = asking(search.on_answer(r.AskOffer(3, A, newest), silent, now=NOW))
    assert [(q.ask.peer, q.ask.certified_by.round) for q in after.questions if isinstance(q.ask, r.AskOffer)] == [
        (B, rounds[0])
    ]


def test_index_that_most_donors_share_is_taken() -> None:
    search = SnapshotSearch(AHEAD[5:], (A, B, C), LIMITS)
    search.start()
    for number, peer in enumerate((A, B, C), 1):
        search.on_answer(r.AskSnapshots(number, peer), r.SnapshotsListed(number, (5,)), now=NOW)
    false = replace(OFFER, key=b"false")
    entry = AHEAD[5].entry
    search.on_answer(r.AskOffer(4, A, entry), r.OfferCame(4, false), now=NOW)
    search.on_answer(r.AskOffer(5, B, entry), r.OfferCame(5, OFFER), now=NOW)
    assert search.on_answer(r.AskOffer(6, C, entry), r.OfferCame(6, OFFER), now=NOW) == r.OpenDownload(OFFER)


# --- BranchProgress and OwnChain


def test_progress_leaves_our_entries_rebuilds_and_replays() -> None:
    chain = own_chain()
    progress = progress_of(FORK, 2, chain, own=COMMON[2:])
    leave = progress.start()
    assert isinstance(leave, r.LeaveOwn) and len(leave.own) == 2
    chain.note(leave, r.OwnLeft())
    assert chain.height == 2 and chain.state_digest is None
    rebuild = progress.on_step(r.OwnLeft(), now=NOW)
    assert rebuild == r.Rebuild(has_way_back=True)
    chain.note(rebuild, r.Rebuilt(digest_of(FORK[:2])))
    outcome = progress.on_step(r.Rebuilt(digest_of(FORK[:2])), now=NOW)
    for place in range(2, 6):
        (question,) = asking(outcome).questions
        assert question.ask == r.AskPayload(UNNUMBERED, A, FORK[place])
        take = progress.on_answer(question.ask, r.PayloadCame(9), now=NOW)
        assert isinstance(take, r.TakeEntry)
        done = r.EntryTaken(digest_of(FORK[: place + 1]))
        chain.note(take, done)
        outcome = progress.on_step(done, now=NOW)
    assert outcome == Complete() and chain.has_moved and chain.height == 6


def test_donor_that_failed_is_asked_last_and_without_donors_a_snapshot_is_sought() -> None:
    progress = progress_of(AHEAD, 4, own_chain())
    (first,) = asking(progress.start()).questions
    (second,) = asking(progress.on_answer(first.ask, r.AskFailed(1, "not_found"), now=NOW)).questions
    assert (first.ask.peer, second.ask.peer) == (A, B)
    lists = asking(progress.on_answer(second.ask, r.AskFailed(2, "busy"), now=NOW))
    assert {type(question.ask) for question in lists.questions} == {r.AskSnapshots}
    progress.on_answer(r.AskSnapshots(3, A), r.SnapshotsListed(3, ()), now=NOW)
    outcome = progress.on_answer(r.AskSnapshots(4, B), r.SnapshotsListed(4, ()), now=NOW)
    assert outcome == Failed("payload of entry 4: A: not_found; B: busy")
    assert progress.way_back() is None, "nothing of ours was left for it"


def test_way_back_keeps_the_part_that_is_better_than_what_we_left() -> None:
    chain = own_chain()
    progress = progress_of(FORK, 2, chain, own=COMMON[2:])
    assert progress.way_back() is None, "nothing is left before the way is known"
    leave = progress.start()
    assert isinstance(leave, r.LeaveOwn)
    chain.note(leave, r.OwnLeft())
    back = progress.way_back()
    assert back is not None and not back.is_kept and back.taken == ()
    chain.note(back, r.TurnedBack(digest_of(COMMON)))
    assert not chain.has_moved and chain.state_digest == digest_of(COMMON)
    chain.note(leave, r.OwnLeft())
    chain.note(r.TakeEntry(FORK[2], 1, None, None), r.EntryTaken(digest_of(FORK[:3])))
    back = progress.way_back()
    assert back is not None and back.is_kept and back.taken == (FORK[2],)


def test_branch_on_another_state_is_false() -> None:
    chain = own_chain()
    chain.state_digest = STATE_0
    outcome = progress_of(AHEAD, 4, chain).start()
    assert isinstance(outcome, Failed) and outcome.is_false


def test_a_refused_step_changes_nothing_of_our_chain() -> None:
    chain = own_chain()
    before = (list(chain.heads), chain.state_digest)
    chain.note(r.TakeEntry(AHEAD[4], 1, None, None), r.EntryRefused("does not decode"))
    chain.note(r.AdoptSnapshot(OFFER, AHEAD[5].entry, tuple(AHEAD[4:5]), None, None), r.AdoptRefused("other state"))
    assert (chain.heads, chain.state_digest) == before and not chain.has_moved


# --- OpenQuestions and SourceFaults


def test_questions_are_numbered_once_and_withdrawn_ones_are_not_answered() -> None:
    questions = OpenQuestions()
    first = questions.put(r.AskSnapshots(UNNUMBERED, A), NOW, 60.0)
    second = questions.put(r.AskChunk(UNNUMBERED, B, 3), Monotonic(NOW + 1), 10.0)
    assert (first.request, second.request) == (1, 2)
    assert questions.next_deadline() == NOW + 11.0
    assert questions.expired(Monotonic(NOW + 11.0)) == [2]
    assert questions.withdraw(lambda ask: ask.peer == B) == (2,)
    assert questions.answered(2) is None and questions.answered(1) is not None and questions.answered(1) is None


def test_who_gave_a_wrong_chunk_is_refuted_whatever_else_failed() -> None:
    faults, questions = SourceFaults(), OpenQuestions()
    questions.put(r.AskChunk(UNNUMBERED, A, 0), NOW, 1.0)
    asked = questions.answered(1)
    assert asked is not None
    faults.hear(asked, r.AskFailed(1, "wrong hash", is_wrong=True))
    faults.note(A, "nobody is left", is_false=False)
    faults.note(B, "silent", is_false=False)
    assert faults.unconfirmed == [A] and faults.unavailable == [B] and faults.problems[0] == "A: wrong hash"
