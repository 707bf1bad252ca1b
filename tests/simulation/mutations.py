"""Plants one deliberate bug after the other; the simulator must find each: `python -m tests.simulation.mutations`.

One that survives shows where it is blind. A commit said before the log's fsync breaks no rule: the promise repeats it.
"""

import argparse
import dataclasses
import sys
from typing import Any

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId
from dilocoxd.machines.chain import RECENT_ENTRIES, ChainView
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.exchange.segments import Destination, Refusal
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.machines.membership.machine import DEAD, Membership
from dilocoxd.machines.peers import double_votes, reverts
from dilocoxd.machines.peers.double_votes import DoubleVotes
from dilocoxd.machines.peers.false_results import FalseResults
from dilocoxd.machines.peers.readiness import Readiness
from dilocoxd.machines.peers.reverts import Reverts
from dilocoxd.machines.peers.standing import PeerBook
from dilocoxd.machines.peers.tips import Tips
from dilocoxd.machines.recovery import comparison, progress
from dilocoxd.machines.recovery.chunks import ChunkPool
from dilocoxd.machines.recovery.comparison import Comparison
from dilocoxd.machines.recovery.interface import OwnRead
from dilocoxd.machines.recovery.machine import RecoveryMachine
from dilocoxd.machines.recovery.progress import BranchProgress
from dilocoxd.machines.recovery.questions import OpenQuestions
from dilocoxd.machines.recovery.rollback import dropped_phases
from dilocoxd.machines.round import exchanging, gathering, grouping, height as heights, joining, life, proposals, voting
from dilocoxd.machines.round.attempt import RunningAttempt
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.life import RoundLife
from dilocoxd.machines.round.locks import AcceptBox, HeldLock, LockDecision, Tally, VoteBox
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outcomes import Waiting
from dilocoxd.machines.round.outputs import AbandonContribution as Dropped
from tests.simulation.peer import disk, recovering
from tests.simulation.peer.node import Node
from tests.simulation.peer.worker import Worker
from tests.simulation.planting import Bug, both, caught_by, replaced
from tests.simulation.schedules.scenarios_finality import FINAL_DEPTH


def forget_a_vote(self: VoteBox, attempt: Any, entry: Any, voters: Any) -> Tally:
    tally = _tally(self, attempt, entry, voters)
    if tally.votes is None and len(tally.missing) == 1 and len(voters) > 1 and not tally.dissenting:
        return _tally(self, attempt, entry, tuple(v for v in voters if v not in tally.missing))
    return tally


_tally = VoteBox.tally


def is_in_attempt(self: Readiness, peer: Any, attempt: Any) -> bool:
    ready = self.ready(peer)
    return ready is not None and ready.attempt == attempt


def old_phase_counts(self: Inbox, contributions: Any, me: Any) -> None:
    kept = {peer: dict(segments) for peer, segments in self.kept.items()}
    _open_inbox(self, contributions, me)
    for peer, segments in kept.items():
        if peer in self.kept:
            self.kept[peer] = segments


_open_inbox = Inbox.open


def any_attempt(self: RoundMachine, peer: Any, key: Any) -> Destination | Refusal:
    if self.height.attempt.exchange is not None and key.kind == 1 and key.round == self.height.round:
        return Destination(None, key.pass_index, key.segment)
    return _destination(self, peer, key)


_destination = RoundMachine.destination


def own_result_is_finer(self: Worker, order: Any) -> None:
    _reduce(self, order)
    place = (order.pass_index, order.segment)
    self.result[place] = self.result[place][:-1] + bytes([self.result[place][-1] ^ 1])


_reduce = Worker.reduce


def finds_nothing(height: Any, event: Any, state: Any, now: Any) -> Any:
    return _on_audited(height, dataclasses.replace(event, culprits=()), state, now)


_on_audited = exchanging.on_audited


def without_turnout(self: disk.Disk, sums: Any) -> ChainView:
    return dataclasses.replace(_chain(self, sums), turnout=())


_chain = disk.Disk.chain


def is_taken_back(self: Tips, chain: Any, peer: Any, height: Any, *rest: Any, **named: Any) -> str:
    known = self.claims.get(peer)
    if known is not None and known.height > height:
        self.withdraw(peer)
    return _hear(self, chain, peer, height, *rest, **named)


_hear = Tips.hear


def stays_dead(self: Membership, record: Any, **news: Any) -> bool:
    return self.state(record.peer, now=news["now"]) != DEAD and _seen(self, record, **news)


_seen = Membership.seen


def liar_is_asked_again(self: ChunkPool, peer: Any, number: Any, reason: Any, *, is_final: bool) -> None:
    _failed(self, peer, number, reason, is_final=False)


_failed = ChunkPool.failed


def snapshot_settles_nothing(entry: Any, in_flight: Any) -> Any:
    caller = sys._getframe(1).f_code.co_name
    return None if caller == "<genexpr>" else _settlement(entry, in_flight)


_settlement = progress.settlement


def replays_blindly(self: BranchProgress) -> Any:
    left = self._better.branch.entries[self._num_taken :]
    if left and self._chain.state_digest is not None:
        self._chain.state_digest = Digest(left[0].entry.state_digest)
    return _replay(self)


_replay = BranchProgress._replay


def claims_stay(self: Tips, unconfirmed: Any, unavailable: Any, now: Any) -> None:
    _tips_failed(self, (), (), now)


_tips_failed = Tips.failed


def is_shorter(branch: Any, own: Any, reverted: Any) -> bool:
    return len(branch.entries) < len(own)


def wakes_nobody(self: RoundMachine) -> None:
    _look(self)


_look = RoundMachine._look


def says_it_once(self: RoundLife) -> None:
    self.repeat_at = Monotonic(self.now + 1.0)


def grace_goes_on(self: Height, seconds: float) -> None:
    self.attempt.timers.move(seconds)


def who_went_on_is_awaited(height: Height, held: HeldLock, peer: Any, now: Any) -> bool:
    said = height.words.ready(peer)
    went_on = said is not None and said.attempt > held.attempt and height.book.is_live(peer)
    return went_on or _is_awaited(height, held, peer, now)


_is_awaited = voting._is_awaited


def joins_late(self: PeerBook, peer: Any) -> None:
    self.records[peer].has_missed_join = False


def counts_on(self: PeerBook, peers: Any, now: Any) -> None:
    self.awaited |= {peer: now for peer in peers if peer not in self.awaited}


def falls_back_silently(self: PeerBook, peer: Any, height: Any, head: Any) -> None:
    was = self.records[peer].has_missed_join
    _fell_back(self, peer, height, head)
    self.records[peer].has_missed_join = was


_fell_back = PeerBook.fell_back


def accepts_without_disk(self: RoundLife, *commands: Any) -> None:
    kept, self._promise = self._promise, lambda: None  # type: ignore[method-assign]
    _emit(self, *commands)
    self._promise = kept  # type: ignore[method-assign]


def forgets_orders(self: RoundLife, *commands: Any) -> None:
    _emit(self, *commands)
    self.own.orders.clear()


_emit = RoundLife.emit


def late_is_over(contribution: Any, chain: ChainView, limits: Any) -> str:
    return "late" if contribution.base_round < chain.height else _contribution_problem(contribution, chain, limits)


_contribution_problem = life.contribution_problem


def offers_at_first(self: Height) -> Any:
    ready = _ready_message(self)
    return ready if self.attempt.index == 0 else dataclasses.replace(ready, contribution=None)


_ready_message = Height.ready_message


def leaves_all_out(self: ChainView, evidence: Any) -> frozenset[PeerId]:
    return frozenset([*self.barred, *(found.peer for found in evidence)])


def trains_for_ever(self: Height, view: Any) -> bool:
    return bool(view.is_training) and not self.book.is_suspected(view.peer)


def other_branch_is_final(self: Comparison, done: Any) -> Any:
    if isinstance(done, OwnRead) and done.entries and len(self._branch.entries) > len(done.entries) + FINAL_DEPTH:
        done = dataclasses.replace(done, num_final=1)
    return _on_step(self, done)


_on_step = Comparison.on_step


def forgets_the_operator(self: disk.Disk) -> Any:
    self.adopted = None
    return _open_disk(self)


_open_disk = disk.Disk.open


def takes_fresh_ids_alone(gathered: Any, limits: Any, *, now: Monotonic) -> Any:
    is_alone = len(gathered.on_probation) == len(gathered.contributions)
    return _decide_group(gathered._replace(on_probation=()) if is_alone else gathered, limits, now=now)


_decide_group, _vote = gathering.decide_group, Reverts.vote


def others_wait_in_vain(self: PeerBook, **whom: Any) -> None:
    _waited_in_vain(self, **{what: [peer for peer in peers if peer != self.me] for what, peers in whom.items()})


_waited_in_vain = PeerBook.waited_in_vain


BUGS: dict[str, Bug] = {
    "who was silent once is never waited for again": both(
        replaced(PeerBook, "joined", lambda self, peer: None), replaced(PeerBook, "fell_back", falls_back_silently)
    ),
    "the grace goes on while a peer stands still": replaced(Height, "stood_still", grace_goes_on),
    "who trickles is waited for before the others": replaced(RecoveryMachine, "_is_trickle", lambda *given: False),
    "who is silent is waited for anew in each attempt": replaced(PeerBook, "awaits", lambda self, *given: None),
    "who answers has had its time all the same": both(
        replaced(PeerBook, "joined", joins_late), replaced(PeerBook, "awaits", counts_on)
    ),
    "who gives slowly is asked for each payload": replaced(progress, "QUICK_PART", 1.0),
    "who says of most that they do nothing goes first": replaced(
        grouping, "_not_at_fault", lambda gathered: gathered.contributions.keys()
    ),
    "who goes on in time is not blamed": replaced(RunningAttempt, "withheld_with", lambda *given: ()),
    "who coordinates waits for itself in each round": replaced(PeerBook, "waited_in_vain", others_wait_in_vain),
    "ghosts are waited for in each round": replaced(PeerBook, "waited_in_vain", lambda self, **whom: None),
    "no time-out is moved after standing still": replaced(life, "LAG_S", float("inf")),
    "promise is not written": replaced(Node, "_persist_promise", lambda self, *given, **named: None),
    "vote is not locked": replaced(heights, "resolve_locks", lambda *a, **k: LockDecision(True, None, (), "free")),
    "one vote less is enough": replaced(VoteBox, "tally", forget_a_vote),
    "observers need not accept": replaced(AcceptBox, "missing", lambda self, held: ()),
    "busy observers count as silent": replaced(voting, "observers_elsewhere", lambda *given: []),
    "who is left out and went on is waited for": replaced(voting, "_is_awaited", who_went_on_is_awaited),
    "majority is not required": replaced(proposals, "missing_majority", lambda group, recent: ""),
    "a phase may count twice": replaced(ChainView, "holds", lambda self, contribution: False),
    "payload of an older phase is used": replaced(Inbox, "open", old_phase_counts),
    "results of an abandoned attempt are stored": replaced(RoundMachine, "destination", any_attempt),
    "owner keeps another result than it sends": replaced(Worker, "reduce", own_result_is_finer),
    "a site alone makes whole steps": replaced(ChainView, "missing", lambda self, present: 0),
    "those missing are counted from the last restart": replaced(disk.Disk, "chain", without_turnout),
    "entry is applied without settling": replaced(Node, "_settle", lambda self, *given, **named: None),
    "any other chain is better": replaced(comparison, "is_better", lambda branch, own, reverted: bool(branch.entries)),
    "shorter chain is better": replaced(comparison, "is_better", is_shorter),
    "foreign chains are not checked": replaced(recovering, "check_branch", lambda *a: None),
    "Ready is said once": replaced(RoundLife, "repeat", says_it_once),
    "lost transfers are not repeated": replaced(Exchange, "retry", lambda self, now: []),
    "no deadline is set": replaced(RoundMachine, "_look", wakes_nobody),
    "nobody notices who is ahead": replaced(joining, "look_at_tips", lambda height, state, now: Waiting("nothing")),
    "an older message takes back a claim": replaced(Tips, "hear", is_taken_back),
    "a restarted voter asks nobody": replaced(gathering, "unheard_voters", lambda *given: None),
    "states on the way are not compared": replaced(BranchProgress, "_replay", replays_blindly),
    "a false branch is not left": replaced(BranchProgress, "way_back", lambda self: None),
    "who gave a wrong chunk is asked again": replaced(ChunkPool, "failed", liar_is_asked_again),
    "a snapshot settles nothing that it skips": replaced(progress, "settlement", snapshot_settles_nothing),
    "a vote in vain is forgotten": replaced(life, "AbandonContribution", lambda phase, is_voted: Dropped(phase, False)),
    "a branch that cannot be had is waited for": replaced(Tips, "failed", claims_stay),
    "questions have no deadline": replaced(OpenQuestions, "expired", lambda self, now: []),
    "nobody comes back from the dead": replaced(Membership, "seen", stays_dead),
    "a half is most of all": replaced(Membership, "_are_most", lambda *given: True),
    "who is gone is waited for": replaced(Membership, "gone", lambda self, peer, now: False),
    "who raises attempts is always followed": replaced(PeerBook, "raised", lambda self, peer: None),
    "who is needed for a majority is suspected": replaced(Height, "_needed_though_suspected", lambda self: frozenset()),
    "who catches up is proposed meanwhile": replaced(Readiness, "is_in", is_in_attempt),
    "what is accepted is not on disk": replaced(RoundLife, "emit", accepts_without_disk),
    "an exchange begins while the worker is busy": replaced(RoundLife, "emit", forgets_orders),
    "a late contribution is given up": replaced(life, "contribution_problem", late_is_over),
    "a contribution is offered in the first attempt only": replaced(Height, "ready_message", offers_at_first),
    "who never votes is asked again": replaced(proposals, "named_voters", lambda height, locks, _: {*locks.voters}),
    "a newcomer proposes the one that it knows": replaced(gathering, "_unacquainted", lambda *given: None),
    "strangers are not asked": replaced(PeerBook, "is_witness", lambda self, peer, now: self.is_live(peer)),
    "who is not known yet is lost": replaced(PeerBook, "is_lost", lambda self, peer: not self.is_live(peer)),
    "strangers are not believed": replaced(PeerBook, "_is_there", lambda self, peer, *given: self.is_live(peer)),
    "nobody shows its results": replaced(voting, "_opened", lambda *given: ()),
    "votes beside who is ahead": replaced(Tips, "pressing", lambda self: []),
    "commits beside another entry": replaced(Tips, "contrary", lambda self, entry, height: []),
    "a void lock is carried on": replaced(proposals, "is_disproved", lambda lock, locks: False),
    "recovery waits for ever": replaced(Tips, "due", lambda self, now: {}),
    "verify skipped": replaced(exchanging, "on_audited", finds_nothing),
    "a second vote is no evidence": replaced(DoubleVotes, "_add", lambda self, evidence, chain: None),
    "what recovery brings is not compared": replaced(DoubleVotes, "read", lambda self, chain, entries, keys: None),
    "evidence is believed unchecked": replaced(double_votes, "is_proved", lambda evidence, keys: True),
    "who voted twice is named": replaced(ChainView, "left_out_by", lambda self, evidence: frozenset()),
    "those who voted twice count nowhere, even if nobody else does": replaced(ChainView, "left_out_by", leaves_all_out),
    "who hangs keeps those who voted twice waiting": replaced(Height, "is_at_work", trains_for_ever),
    "evidence is told to nobody": replaced(RoundLife, "accuse", lambda self: None),
    "a promise is forgotten on the way back": replaced(RoundLife, "_remember", lambda self, promise: None),
    "a final entry is left": replaced(recovering, "num_final", lambda *given: 0),
    "what is final on another branch is final here": replaced(Comparison, "on_step", other_branch_is_final),
    "a minority takes an entry back": replaced(reverts, "is_decided", lambda voters, electorate: any(voters)),
    "an entry that was taken back is kept": replaced(Reverts, "due", lambda self, chain: None),
    "a lock on an entry that was taken back is finished": replaced(Reverts, "is_void", lambda self, digest: False),
    "work in an entry that was taken back is owed": replaced(
        recovering, "dropped_phases", lambda me, own, branch, reverted=(): dropped_phases(me, own, branch)
    ),
    "attempts begin anew after an entry was taken back": both(
        replaced(Reverts, "first_attempt", lambda self, round_index: Attempt(0)),
        replaced(RoundLife, "_remember", lambda self, promise: None),
    ),
    "a false result is voted against by nobody": replaced(Reverts, "vote_against", lambda self, *given: []),
    "an old false result is taken back": replaced(ChainView, "electorate_at", lambda self, number: self.electorate(())),
    "who made a false result is proposed": replaced(FalseResults, "liars", lambda self, round_index: []),
    "false results use up what is for entries that spoil": replaced(Reverts, "vote", lambda *all: _vote(*all[:4])),
    "what is shown late is taken back again and again": replaced(reverts, "VOTE_DEPTH", RECENT_ENTRIES),
    "the operator's word is forgotten in a crash": replaced(disk.Disk, "open", forgets_the_operator),
    "probation is ignored when peers are counted": replaced(ChainView, "is_on_probation", lambda self, peer: False),
    "the ramp is ignored": replaced(ChainView, "ramps", lambda self, peers: ()),
    "entries of fresh ids alone are taken": both(
        replaced(gathering, "decide_group", takes_fresh_ids_alone),
        replaced(grouping, "probation_problem", lambda *given: ""),
        replaced(proposals, "unseconded", lambda *given: ""),
    ),
    "a vote goes out without its lock": replaced(RoundLife, "_promise", lambda self: None),
    "ids that sort first have the seats": replaced(grouping, "_seniors_first", lambda found, usable, _: sorted(usable)),
    "who did not offer may be named": replaced(VoteKeys, "is_offered", lambda self, contribution, offer: True),
    "whoever signed a vote": replaced(VoteKeys, "is_genuine", lambda self, vote, what: True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--num-seeds", type=int, default=120, help="schedules per bug at most")
    parser.add_argument("--only", help="part of the name of a bug")
    options = parser.parse_args()
    survivors = []
    for name, bug in [(name, bug) for name, bug in BUGS.items() if (options.only or "") in name]:
        found = caught_by(bug, options.first_seed, options.num_seeds)
        if found is None:
            survivors.append(name)
        print(f"{found[0]!s:>36}  {name}: {found[1][:110]}" if found else f"SURVIVED  {name}", flush=True)
    print(f"{len(BUGS)} bugs, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
