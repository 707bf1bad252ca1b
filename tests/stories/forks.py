"""Stories of chains that part and meet again: fork choice, owed work, recovery by entries and by snapshots."""

from dataclasses import replace

from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.rollback import dropped_phases
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.wire.messages import Ready
from tests.simulation.peer.node import Node
from tests.stories.stage import Stage
from tests.stories.story import story


def _weight(node: Node) -> int:
    return node.machine.chain.weight


@story("20-fork-and-heal", "The network splits and heals", "R6 R19 R20 R21")
def fork_and_heal() -> Stage:
    """A and B are cut apart. Each takes the other for gone and goes on alone: two entries for one round. When they
    meet again, the branch with more tokens since the fork wins. The loser takes it, and its own work goes back into
    its error feedback: nothing is lost, nothing counts twice."""
    stage = Stage(options={"may_fork": True})
    left, right = stage.enter("AB")
    stage.warm_up()
    stage.nobody_trains()
    stage.until(stage.swarm.is_settled)
    stage.rise()
    stage.cut([left], [right], is_cut=True)
    stage.until(lambda: stage.alone(left) and stage.alone(right))
    for node in (left, right):
        stage.form(node)
    stage.cut([left], [right], is_cut=False)
    stage.until(lambda: left.machine.chain.head == right.machine.chain.head)
    stage.swarm.is_training = True
    assert stage.swarm.ledger.num_forks() > 0
    (loser,) = [node for node in stage.nodes if stage.did(r.LeaveOwn, node)]
    (leave,) = stage.did(r.LeaveOwn, loser)
    assert dropped_phases(loser.name, leave.own, leave.branch)
    return stage


@story("21-work-comes-back", "Work that a fork dropped comes back", "R16 R21")
def work_comes_back() -> Stage:
    """B has its work in a branch that it shares with C, and leaves it for a heavier one of A: that work is in its
    error feedback then. Meanwhile C makes the branch that B left the heaviest. When all meet again, B takes the old
    entry once more, and its work leaves the feedback: it counts once, in the chain. Only B is shown."""
    stage = Stage(options={"may_fork": True})
    one, mover, other = stage.enter("ABC")
    stage.warm_up()
    stage.nobody_trains()
    stage.until(stage.swarm.is_settled)
    stage.cut([one], [mover, other], is_cut=True)
    stage.until(lambda: stage.alone(one) and stage.alone(mover, other))
    stage.form(mover)
    stage.until(lambda: mover.machine.chain.head == other.machine.chain.head and other.is_idle())
    stage.cut([one, mover], [other], is_cut=True)
    stage.until(lambda: stage.alone(mover) and stage.alone(other))
    while _weight(one) <= _weight(mover):
        stage.form(one)
    stage.teller.forget()
    stage.rise(only="B")
    stage.cut([one], [mover], is_cut=False)
    stage.until(lambda: mover.machine.chain.head == one.machine.chain.head and mover.is_idle())
    (leave,) = stage.did(r.LeaveOwn, mover)
    dropped = dropped_phases(mover.name, leave.own, leave.branch)
    assert dropped
    stage.teller.close()
    while _weight(other) <= _weight(one):
        stage.form(other)
    stage.tell("C has gone on alone meanwhile, from the entry that B has left: its branch is the heaviest now")
    stage.rise(only="B")
    stage.cut([one, mover], [other], is_cut=False)
    stage.until(lambda: mover.machine.chain.head == other.machine.chain.head and mover.is_idle())
    taken = [order.signed.entry for order in stage.did(r.TakeEntry, mover)]
    assert any(one.peer == mover.name and one.phase in dropped for entry in taken for one in entry.contributions)
    assert any("leaves the feedback again" in line for line in stage.teller.lines)
    stage.swarm.is_training = True
    return stage


@story("22-snapshot", "A newcomer skips a long way with a snapshot", "R20 L6 L8 L9 L11")
def snapshot() -> Stage:
    """The payloads of old entries are gone at A and B; both have a snapshot of a later state. The newcomer takes
    all entries, looks for a snapshot that one of them certifies, fetches its chunks from both, and replays the
    rest."""
    stage = Stage(options={"serves_last": 2})
    stage.swarm.recovery_limits = replace(stage.swarm.recovery_limits, replay_max=1)
    stage.enter("AB")
    stage.warm_up(5)
    stage.nobody_trains()
    stage.until(stage.swarm.is_settled)
    newcomer = stage.swarm.add("C", 4.0)
    stage.rise()
    stage.start(newcomer)
    stage.until(lambda: newcomer.machine.chain.head == stage.nodes[0].machine.chain.head)
    stage.swarm.is_training = True
    assert stage.did(r.AdoptSnapshot, newcomer)
    assert {question.peer for question in stage.did(r.AskChunk, newcomer)} == {"A", "B"}
    return stage


@story("23-wrong-bits", "Peers at the same head say that they hold other bits", "R23")
def wrong_bits() -> Stage:
    """Two peers of three say to C, at its own head, that their shared state has another digest. Reports do not tell
    who is right, but C is alone with its bits: it rebuilds its state from its own disk, finds the digest that was
    voted on, and goes on."""
    stage = Stage()
    *others, alone = stage.enter("ABC")
    stage.warm_up()
    stage.nobody_trains()
    stage.until(stage.swarm.is_settled)
    status, chain = alone.machine.status, alone.machine.chain
    other_bits = Ready(status.round, status.attempt, chain.head, chain.head, None, None, None, 0)
    stage.rise()
    for node in others:
        stage.tell(f"a Ready of {node.name} comes with a digest that is not that of C")
        alone.feed(e.MessageReceived(node.name, other_bits))
    stage.until(lambda: bool(stage.met(e.RecoveryFinished, alone) or stage.met(e.RecoveryFailed, alone)))
    assert any(order.is_rebuild for order in stage.did(c.StartRecovery, alone))
    assert stage.reported("digest_mismatch")
    stage.swarm.is_training = True
    return stage


STORIES = (fork_and_heal, work_comes_back, snapshot, wrong_bits)
