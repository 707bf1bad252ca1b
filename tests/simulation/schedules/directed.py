"""Directed schedules for catching up, and all directed schedules together."""

from dataclasses import replace

from dilocoxd.ids import PhaseId
from dilocoxd.machines.chain import entry_tokens
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.messages import Committed, Vote
from tests.simulation.ledger import INCLUDED, RECLAIMED
from tests.simulation.peer.disk import Stored
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.scenarios_rules import RULES
from tests.simulation.scenarios_trust import TRUST
from tests.simulation.schedules import scenarios
from tests.simulation.schedules.byzantine import Mischief
from tests.simulation.schedules.scenario_tools import _checked, _cut, _result, _swarm, _until
from tests.simulation.schedules.scenarios_causes import CAUSES
from tests.simulation.schedules.scenarios_double_votes import DOUBLE_VOTES
from tests.simulation.schedules.scenarios_false_sums import FALSE_SUMS
from tests.simulation.schedules.scenarios_finality import FINALITY
from tests.simulation.schedules.scenarios_gone import GONE
from tests.simulation.schedules.scenarios_liars import LIARS
from tests.simulation.schedules.scenarios_probation import PROBATION
from tests.simulation.schedules.scenarios_reverts import REVERTS
from tests.simulation.swarm import Swarm


def _before_a_newcomer(count: int) -> tuple[Swarm, list[Node], Node]:
    """(swarm, its peers, a newcomer that needs a snapshot). The first peer lies about chunks, nobody trains."""
    swarm, nodes = _swarm(count)
    swarm.may_fork = swarm.has_liar = True
    swarm.serves_last = 2
    swarm.recovery_limits = replace(swarm.recovery_limits, replay_max=1)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 4 for node in nodes), 90.0)
    nodes[0].mischief = Mischief("drops nothing", keys_of(nodes[0].name), swarm.world.rng)
    swarm.is_training = False  # the newest snapshot stays the same
    _until(swarm, swarm.is_settled, 150.0)
    return swarm, nodes, swarm.add("newcomer", 4.0)


def newcomer_gets_a_snapshot_in_spite_of_all() -> str:
    """One source lies about chunks, one dies, the newcomer is killed in the middle and goes on with what is on disk."""
    swarm, nodes, newcomer = _before_a_newcomer(3)
    _, dying, good = nodes
    for node in nodes:
        swarm.world.link(node.name, newcomer.name).bytes_per_s = 20.0
    newcomer.start()

    def on_disk() -> set[int]:
        return set[int]().union(*newcomer.disk.chunks.values())

    _until(swarm, lambda: len(on_disk()) > 1, 250.0)
    dying.crash()
    newcomer.crash()
    before = on_disk()
    newcomer.start()
    _until(swarm, lambda: len(on_disk()) > len(before), 350.0)
    assert newcomer.recovery is not None
    again = before & set(newcomer.recovery.chunk_of.values())
    if again:
        return f"chunks {again} were on disk and are fetched again"
    _until(swarm, lambda: len(newcomer.disk.log) == len(good.disk.log), 450.0)
    dying.start()
    return _result(swarm)


def who_gives_a_wrong_chunk_is_not_asked_again() -> str:
    """Half of a liar's chunks are wrong, and it is the fast source: the newcomer gets the rest from the slow one.

    Whether it gives a wrong chunk or something else that is false is left to chance: one newcomer after the other."""
    swarm, (liar, good), newcomer = _before_a_newcomer(2)
    for number in range(20):
        for node, bytes_per_s in ((liar, 1000.0), (good, 20.0)):
            swarm.world.link(node.name, newcomer.name).bytes_per_s = bytes_per_s
        newcomer.start()
        _until(swarm, lambda new=newcomer: len(new.disk.log) == len(good.disk.log), 450.0 + 200.0 * number)
        if newcomer.recovery is not None and newcomer.recovery.liars:
            return _result(swarm)
        newcomer = swarm.add(f"newcomer {number}", 4.0)
    return "no wrong chunk in 20 downloads"


def _before_a_withheld_branch() -> tuple[Swarm, list[Node]]:
    """(swarm, its honest peers). A liar shows a heavier branch from now on and withholds its payloads."""
    swarm, nodes = _swarm(3)
    swarm.may_fork = swarm.has_liar = True
    liar, *honest = nodes
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    mischief = Mischief("withholds", keys_of(liar.name), swarm.world.rng)
    while _weight(mischief.forged[len(liar.disk.log) :]) < 5000:
        mischief.forge(liar)
    mischief.forge = lambda node: None  # type: ignore[method-assign]
    liar.mischief = mischief
    return swarm, honest


def branch_that_nobody_gives_is_not_waited_for() -> str:
    """The others go on."""
    swarm, honest = _before_a_withheld_branch()
    before = min(node.machine.chain.height for node in honest)
    swarm.world.run(swarm.world.now + 60.0)
    after = min(node.machine.chain.height for node in honest)
    return _result(swarm) or ("" if after > before + 2 else f"height {before} -> {after} in 60 s")


def who_is_away_at_the_end_comes_back() -> str:
    """The end comes when a peer has left its branch for one that nobody gives: its own is in the log again soon."""
    swarm, (away, other) = _before_a_withheld_branch()
    _until(swarm, lambda: bool(away.disk.aside) and away.machine.chain.head == other.machine.chain.head)
    return _checked(swarm)


def who_dies_with_a_part_of_a_false_branch_says_what_it_left() -> str:
    """On both kinds of disk: its own branch is in the log again, the part that it had taken is lost with a report."""
    return _dies_with_a_part(has_files=False) or _dies_with_a_part(has_files=True)


def _dies_with_a_part(*, has_files: bool) -> str:
    swarm, nodes = _swarm(3, has_files=has_files, may_fork=True, has_liar=True)
    liar, victim, _ = nodes
    try:
        _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
        mischief, fork = Mischief("forges_a_branch", keys_of(liar.name), swarm.world.rng), len(liar.disk.log) - 1
        for _ in range(10_000):
            mischief.forge(liar)
            made = mischief.forged[fork:]
            if len(made) == 3 and _weight(made) > 5000 and _weight(made[:1]) < 100 and _is_on(liar.disk.log, made[0]):
                break
        mischief.forge = lambda node: None  # type: ignore[method-assign]
        liar.mischief = mischief
        _until(swarm, lambda: victim.name in swarm.ledger.given_up and len(victim.disk.log) == fork + 1)
        own, part = swarm.ledger.given_up[victim.name], victim.disk.log[fork]
        victim.crash()
        victim.start()
        if [stored.signed.entry for stored in victim.disk.log[fork:]] != own:
            return "its own branch is not in the log again"
        if swarm.ledger.reported[victim.name] != {entry_hash(part.signed.entry)}:
            return "reported as lost are not those that are lost"
        return _result(swarm)
    finally:
        swarm.close()


def log_is_lost_between_two_branches() -> str:
    """On both kinds of disk: who dies while it takes a better branch, and loses its log, begins again at genesis."""
    return _log_is_lost(has_files=False) or _log_is_lost(has_files=True)


def _log_is_lost(*, has_files: bool) -> str:
    swarm, nodes = _swarm(3, has_files=has_files, may_fork=True, has_lost_disk=True)
    lost, *others = nodes
    try:
        _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
        _cut(swarm, [lost], others, is_cut=True)
        heights = [len(node.disk.log) + 2 for node in nodes]
        _until(swarm, lambda: all(len(n.disk.log) >= h for n, h in zip(nodes, heights, strict=True)), 120.0)
        _cut(swarm, [lost], others, is_cut=False)
        _until(swarm, lambda: lost.name in swarm.ledger.given_up, 180.0)
        lost.crash()
        lost.disk.lose_log()
        swarm.ledger.wiped(lost.name)
        lost.start()
        if lost.machine.chain.height:
            return f"a chain of {lost.machine.chain.height} entries without its beginning"
        return _result(swarm)
    finally:
        swarm.close()


def contribution_that_a_snapshot_skips_counts_once() -> str:
    """A peer stands still after its vote; the entry that names it is far below the tip when it goes on."""
    swarm, nodes = _swarm(2)
    swarm.may_fork = True
    swarm.serves_last = 2
    swarm.recovery_limits = replace(swarm.recovery_limits, replay_max=1)
    other, still = nodes
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    swarm.is_dropped = lambda source, message: source == other.name and isinstance(message, Vote | Committed)
    _until(swarm, lambda: still.machine.status.state == "voting" and still.offered is not None)
    height = len(still.disk.log)
    _until(swarm, lambda: len(other.disk.log) > height)
    still.pause()
    _until(swarm, lambda: len(other.disk.log) > height + 6, 200.0)
    if not any(c.peer == still.name for c in other.disk.log[height].signed.entry.contributions):
        return "the schedule's moment never came"
    swarm.is_dropped = lambda source, message: False
    still.resume()
    return _result(swarm)


def contribution_that_was_voted_for_and_given_up_counts_once() -> str:
    """A voter whom a liar's short branch makes give up its contribution gets the entry with it after all."""
    swarm, nodes = _swarm(3)
    swarm.may_fork = swarm.has_liar = True
    liar, voter, other = nodes
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    swarm.is_dropped = lambda source, message: source == other.name and isinstance(message, Vote | Committed)
    _until(swarm, lambda: len(other.disk.log) > len(voter.disk.log) and voter.offered in _phases(voter, other))
    phase = voter.offered
    mischief = Mischief("forges_a_branch", keys_of(liar.name), swarm.world.rng)
    for _ in range(10_000):
        mischief.forge(liar)
        is_between = _weight(voter.disk.log) < _weight(mischief.forged) < _weight(other.disk.log)
        if is_between and _is_short(mischief.forged, voter.disk.log):
            break
    mischief.forge = lambda node: None  # type: ignore[method-assign]
    liar.mischief = mischief
    _cut(swarm, [voter], [other], is_cut=True)
    _until(swarm, lambda: voter.offered != phase and not voter.is_recovering)
    if voter.disk.log != mischief.forged:
        return "the schedule's moment never came"
    _cut(swarm, [voter], [other], is_cut=False)
    swarm.is_dropped = lambda source, message: False
    return _result(swarm)


def who_dies_on_another_branch_has_books_of_its_own() -> str:
    """What a liar's branch dropped is in the feedback of who took it and died there, and in the chain of the others.

    Back among them, it takes that entry again, and its work leaves the feedback."""
    swarm, nodes = _swarm(3)
    swarm.may_fork = swarm.has_liar = True
    liar, away, other = nodes
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    swarm.is_training = False  # until the liar's branch is taken
    _until(swarm, swarm.is_settled, 90.0)
    mischief = Mischief("forges_a_branch", keys_of(liar.name), swarm.world.rng)
    before, dropped = away.disk.log, (away.name, next(iter(_phases(away, other)), PhaseId(-1)))
    while not _is_half_true(mischief.forged, before):
        mischief.forge(liar)
    tip = mischief.forged[-1].signed.entry
    mischief.messages = lambda *_: [Committed(tip.round, entry_hash(tip))]  # type: ignore[method-assign]
    liar.mischief = mischief
    _cut(swarm, [liar, away], [other], is_cut=True)
    _until(swarm, lambda: away.disk.log == mischief.forged[:-1] and not away.is_recovering)
    away.crash()
    swarm.is_training = True
    swarm.world.run(swarm.world.now + 60.0)
    if swarm.ledger.fates.get(dropped) != RECLAIMED:
        return "the schedule's moment never came"
    if problem := _checked(swarm):
        return problem
    _cut(swarm, [liar, away], [other], is_cut=False)
    away.start()
    return _result(swarm) or ("" if swarm.ledger.fates[dropped] == INCLUDED else "the work is in no chain any more")


def _is_half_true(forged: list[Stored], log: list[Stored]) -> bool:
    """In the place of the last entry of `log` a heavier one, on the same state; behind it one that is false."""
    half = forged[:-1]
    if len(half) != len(log) or half[:-1] != log[:-1] or _weight(half) <= _weight(log):
        return False
    return half[-1].signed.entry.state_digest == log[-1].signed.entry.state_digest


def _weight(log: list[Stored]) -> int:
    return sum(entry_tokens(stored.signed.entry) for stored in log)


def _is_short(forged: list[Stored], log: list[Stored]) -> bool:
    """Ends below `log`, on a state that `log` has too."""
    return len(forged) < len(log) and _is_on(log, forged[-1])


def _is_on(log: list[Stored], stored: Stored) -> bool:
    """Leads on from a state that `log` has too."""
    entry = stored.signed.entry
    return log[entry.round].signed.entry.state_digest == entry.state_digest


def _phases(node: Node, source: Node) -> set[PhaseId]:
    """Of `node`, in the newest entry of `source`."""
    return {c.phase for c in source.disk.log[-1].signed.entry.contributions if c.peer == node.name}


SCENARIOS = (
    *scenarios.SCENARIOS,
    *CAUSES,
    newcomer_gets_a_snapshot_in_spite_of_all,
    who_gives_a_wrong_chunk_is_not_asked_again,
    branch_that_nobody_gives_is_not_waited_for,
    who_is_away_at_the_end_comes_back,
    who_dies_with_a_part_of_a_false_branch_says_what_it_left,
    log_is_lost_between_two_branches,
    contribution_that_a_snapshot_skips_counts_once,
    contribution_that_was_voted_for_and_given_up_counts_once,
    who_dies_on_another_branch_has_books_of_its_own,
    *LIARS,
    *DOUBLE_VOTES,
    *FINALITY,
    *PROBATION,
    *REVERTS,
    *FALSE_SUMS,
    *GONE,
    *RULES,
    *TRUST,
)
