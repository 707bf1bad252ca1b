"""Plants one deliberate bug after the other; the simulator must find each: `python -m tests.simulation.mutations`.

A bug that survives its seeds says that the simulator is blind there. Not in the list because they break no rule: a
commit acknowledged before the log's fsync (the promise of the vote, with the payload, is on disk by then and repeats
the commit), and waiting for a lost peer (only slower: progress time-outs go on without it).
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from dilocoxd.rounds import attempts, ballots, committing, lifecycle, recovery_machine, round as round_module
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.chunks import ChunkPool
from dilocoxd.rounds.commands import SettleContribution
from dilocoxd.rounds.core import Core
from dilocoxd.rounds.drift import Drift
from dilocoxd.rounds.events import Destination, Refusal
from dilocoxd.rounds.exchange import Exchange, Inbox
from dilocoxd.rounds.gathering import Gathering
from dilocoxd.rounds.membership import DEAD, Membership
from dilocoxd.rounds.recovery_machine import RecoveryMachine
from dilocoxd.rounds.requests import Desk
from dilocoxd.rounds.round import RoundMachine
from dilocoxd.rounds.votes import AcceptBox, LockDecision, Tally, VoteBox
from tests.simulation import disk, recovering
from tests.simulation.directed import SCENARIOS
from tests.simulation.node import Node
from tests.simulation.schedule import run_seed
from tests.simulation.worker import Worker

Bug = Callable[[], contextlib.AbstractContextManager[Any]]


def replaced(owner: Any, name: str, value: Any) -> Bug:
    return lambda: mock.patch.object(owner, name, value)


def forget_a_vote(self: VoteBox, attempt: Any, entry: Any, voters: Any) -> Tally:
    tally = _tally(self, attempt, entry, voters)
    if tally.votes is None and len(tally.missing) == 1 and len(voters) > 1 and not tally.dissenting:
        return _tally(self, attempt, entry, tuple(v for v in voters if v not in tally.missing))
    return tally


_tally = VoteBox.tally


def is_in_attempt(self: Gathering, peer: Any, attempt: Any) -> bool:
    return peer in self.readies and self.readies[peer].attempt == attempt


def old_phase_counts(self: Inbox, contributions: Any, me: Any) -> None:
    kept = {peer: dict(segments) for peer, segments in self.kept.items()}
    _open(self, contributions, me)
    for peer, segments in kept.items():
        if peer in self.kept:
            self.kept[peer] = segments


_open = Inbox.open


def any_attempt(self: RoundMachine, peer: Any, key: Any) -> Destination | Refusal:
    if self._core.exchange is not None and key.kind == 1 and key.round == self._core.round:
        return Destination(None, key.pass_index, key.segment)
    return _destination(self, peer, key)


_destination = RoundMachine.destination


def own_result_is_finer(self: Worker, order: Any) -> None:
    _reduce(self, order)
    place = (order.pass_index, order.segment)
    self.result[place] = self.result[place][:-1] + bytes([self.result[place][-1] ^ 1])


_reduce = Worker.reduce


def without_turnout(self: disk.Disk, sums: Any) -> ChainView:
    return dataclasses.replace(_chain(self, sums), turnout=())


_chain = disk.Disk.chain


def is_taken_back(self: Drift, chain: Any, peer: Any, height: Any, *rest: Any, **named: Any) -> str:
    known = self.claims.get(peer)
    if known is not None and known.height > height:
        del self.claims[peer]
    return _note(self, chain, peer, height, *rest, **named)


_note = Drift.note


def stays_dead(self: Membership, record: Any, *, now: Any, is_news: bool) -> bool:
    return self.state(record.peer, now=now) != DEAD and _seen(self, record, now=now, is_news=is_news)


_seen = Membership.seen


def liar_is_asked_again(self: ChunkPool, peer: Any, number: Any, reason: Any, *, is_final: bool) -> None:
    _failed(self, peer, number, reason, is_final=False)


_failed = ChunkPool.failed


def branch_is_not_left(self: RecoveryMachine, reason: str, *, is_false: bool = False) -> None:
    self._fail_peer(reason, is_false=is_false)


def snapshot_settles_nothing(entry: Any, in_flight: Any) -> Any:
    caller = sys._getframe(1).f_code.co_name
    return None if caller in ("<genexpr>", "_adopt") else _settlement(entry, in_flight)


_settlement = recovery_machine.settlement


def claims_stay(self: Drift, refuted: Any, broken: Any, now: Any) -> None:
    _drift_failed(self, (), (), now)


_drift_failed = Drift.failed


def is_shorter(branch: Any, own: Any) -> bool:
    return len(branch.entries) < len(own)


def wakes_nobody(self: Core, at: float) -> bool:
    return self.now >= at


BUGS: dict[str, Bug] = {
    "promise is not written": replaced(Node, "_persist_promise", lambda self, command: None),
    "vote is not locked": replaced(attempts, "resolve_locks", lambda *a, **k: LockDecision(True, None, (), "free")),
    "one vote less is enough": replaced(VoteBox, "tally", forget_a_vote),
    "observers need not accept": replaced(AcceptBox, "missing", lambda self, held: ()),
    "busy observers count as silent": replaced(committing, "_rivals", lambda core, ballot: []),
    "majority is not required": replaced(attempts, "missing_majority", lambda group, recent: ""),
    "a phase may count twice": replaced(ChainView, "holds", lambda self, contribution: False),
    "payload of an older phase is used": replaced(Inbox, "open", old_phase_counts),
    "results of an abandoned attempt are stored": replaced(RoundMachine, "destination", any_attempt),
    "owner keeps another result than it sends": replaced(Worker, "reduce", own_result_is_finer),
    "a site alone makes whole steps": replaced(ChainView, "missing", lambda self, present: 0),
    "those missing are counted from the last restart": replaced(disk.Disk, "chain", without_turnout),
    "entry is applied without settling": replaced(Node, "_settle", lambda self, command: None),
    "any other chain is better": replaced(recovery_machine, "is_better", lambda branch, own: bool(branch.entries)),
    "shorter chain is better": replaced(
        recovery_machine, "is_better", lambda branch, own: len(branch.entries) < len(own)
    ),
    "foreign chains are not checked": replaced(recovering, "check_branch", lambda *a: None),
    "Ready is said once": replaced(round_module, "announce", lambda core: setattr(core, "repeat_at", core.now + 1.0)),
    "lost transfers are not repeated": replaced(Exchange, "retry", lambda self, now: []),
    "no deadline is set": replaced(Core, "is_over", wakes_nobody),
    "nobody notices who is ahead": replaced(round_module, "look_at_drift", lambda core: None),
    "an older message takes back a claim": replaced(Drift, "note", is_taken_back),
    "a restarted voter asks nobody": replaced(attempts, "_unheard_voters", lambda core, locks: ""),
    "a false branch is not left": replaced(RecoveryMachine, "_abort", branch_is_not_left),
    "who gave a wrong chunk is asked again": replaced(ChunkPool, "failed", liar_is_asked_again),
    "a snapshot settles nothing that it skips": replaced(recovery_machine, "settlement", snapshot_settles_nothing),
    "a vote in vain is forgotten": replaced(
        lifecycle, "SettleContribution", lambda *given, **named: SettleContribution(*given)
    ),
    "a branch that cannot be had is waited for": replaced(Drift, "failed", claims_stay),
    "questions have no deadline": replaced(Desk, "expired", lambda self: []),
    "nobody comes back from the dead": replaced(Membership, "seen", stays_dead),
    "who raises attempts is always followed": replaced(Gathering, "is_restless", lambda self, peer: False),
    "who catches up is proposed meanwhile": replaced(Gathering, "is_in", is_in_attempt),
    "a vote goes out without its lock": replaced(ballots, "persist_promise", lambda core: None),
}


def caught_by(bug: Bug, first_seed: int, num_seeds: int) -> tuple[int | str, str] | None:
    """Scenario or seed, and message of the first schedule that shows the bug."""
    with bug():
        for scenario in SCENARIOS:
            try:
                problem = scenario()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                return scenario.__name__, problem
        for seed in range(first_seed, first_seed + num_seeds):
            try:
                outcome = run_seed(seed)
            except Exception as error:
                return seed, f"{type(error).__name__}: {error}"
            if outcome.problem:
                return seed, outcome.problem
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--num-seeds", type=int, default=120, help="schedules per bug at most")
    parser.add_argument("--only", help="part of the name of a bug")
    options = parser.parse_args()
    survivors = []
    for name, bug in BUGS.items():
        if options.only and options.only not in name:
            continue
        found = caught_by(bug, options.first_seed, options.num_seeds)
        if found is None:
            survivors.append(name)
            print(f"SURVIVED  {name}", flush=True)
        else:
            print(f"{found[0]!s:>36}  {name}: {found[1][:110]}", flush=True)
    print(f"{len(BUGS)} bugs, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
