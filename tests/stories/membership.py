"""Stories of peers that come, go, are late, or stand still."""

from dataclasses import replace

from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.round import outputs as c
from dilocoxd.machines.round.inputs import LeaveRequested
from dilocoxd.wire.messages import Leaving, Propose
from tests.stories.stage import Stage
from tests.stories.story import story


@story("13-leaving", "A peer leaves on request", "R6 R17")
def leaving() -> Stage:
    """B is asked to leave in the middle of an exchange. It finishes the attempt, sees that A has its last entry,
    and says Leaving. A does not wait for it any more: the next round is A's alone."""
    stage = Stage()
    stays, leaves = stage.enter("AB")
    stage.warm_up()
    stage.until(lambda: stage.exchanging(2))
    height = stays.machine.chain.height
    stage.rise()
    stage.tell("the operator of B asks it to leave")
    leaves.feed(LeaveRequested())
    stage.until(lambda: leaves.has_left)
    stage.until(lambda: stays.machine.chain.height == height + 2)
    assert stage.said(Leaving, leaves)
    assert not stage.failures()
    entry = stage.did(c.PersistEntry, stays)[-1].signed.entry
    assert [one.peer for one in entry.contributions] == [stays.name]
    return stage


@story("14-late-joiner", "A newcomer joins a run", "R1 R8 R19 L2 L4 L18")
def late_joiner() -> Stage:
    """A and B have come to height 3 when C appears with an empty disk. It hears where they stand, takes entries and
    payloads from them, observes while its first phase trains, and then takes part like everybody else."""
    stage = Stage()
    stage.enter("AB")
    stage.warm_up(3)
    stage.nobody_trains()
    stage.until(stage.swarm.is_settled)
    newcomer = stage.swarm.add("C", 3.0)
    stage.rise()
    stage.start(newcomer)
    stage.until(lambda: stage.all_at(newcomer.machine.chain.height) and newcomer.machine.chain.height > 2)
    assert stage.did(r.TakeEntry, newcomer)
    stage.swarm.is_training = True
    stage.skip(lambda: stage.exchanging(3))
    height = newcomer.machine.chain.height
    stage.until(lambda: stage.all_at(height + 1))
    assert stage.did(c.ApplyEntry, newcomer)[-1].settle is not None
    return stage


@story("15-late-contribution", "A contribution that misses a round goes into the next one", "R6 R7 R16")
def late_contribution() -> Stage:
    """C trains much more slowly than A and B: by its pace it is not due before the grace is over, so nobody waits.
    Its contribution comes when the others exchange already. It stays offered, and the next entry names it, one
    round old."""
    stage = Stage()
    stage.enter("AB")
    slow = stage.swarm.add("C", 9.0)
    stage.swarm.world.at(0.0, slow.start)
    stage.until(lambda: all(n.is_up and n.machine.chain.height >= 6 for n in stage.nodes), 90.0)

    def is_the_moment() -> bool:
        busy = [node for node in stage.rest(slow) if node.machine.status.state in ("exchanging", "voting")]
        return len(busy) == 2 and slow.offered is None and slow.machine.status.state in ("exchanging", "voting")

    stage.until(is_the_moment, 90.0)
    height = slow.machine.chain.height
    slow.worker.form()
    offered = slow.offered
    stage.rise()
    stage.tell(f"C has just offered phase {offered}, in the middle of the exchange of round {height}")

    def applied() -> list[c.ApplyEntry]:
        return [one for one in stage.did(c.ApplyEntry, slow) if one.settle is not None and one.settle.phase == offered]

    stage.until(lambda: bool(applied()), 60.0)
    stage.until(lambda: stage.all_in("gathering"))
    (order,) = applied()
    assert order.round > height
    return stage


@story("16-majority", "quorum = majority: who is cut off waits", "R14")
def majority() -> Stage:
    """Three have contributed lately, then C is cut off. A and B, two of three, go on. C has a contribution, but its
    group would be one of three: it waits, says why, and never forks. When the network is whole again it takes what
    it missed."""
    stage = Stage()
    stage.swarm.limits = replace(stage.swarm.limits, has_majority_quorum=True)
    *others, lonely = stage.enter("ABC")
    stage.warm_up()
    height = lonely.machine.chain.height
    stage.rise()
    stage.cut(others, [lonely], is_cut=True)
    stage.until(lambda: "majority" in lonely.machine.status.waiting_for)
    stage.skip(lambda: stage.all_at(height + 2, others) and stage.all_in("gathering"), 90.0)
    assert lonely.machine.chain.height == height
    stage.nobody_trains()
    stage.cut(others, [lonely], is_cut=False)
    stage.until(lambda: lonely.machine.chain.head == others[0].machine.chain.head)
    stage.swarm.is_training = True
    assert stage.swarm.ledger.num_forks() == 0
    return stage


@story("17-frozen", "A frozen coordinator wakes", "R6 R18")
def frozen() -> Stage:
    """The coordinator gathers, and the machine that it runs on stands still, past the end of the grace. On waking
    it gives everybody the time that it did not watch, and hears what came meanwhile: nobody is left out."""
    stage = Stage()
    stage.enter("ABC")
    stage.warm_up()
    (first,) = [node for node in stage.nodes if "a proposal of" not in node.machine.status.waiting_for]
    early, late = stage.rest(first)
    height = first.machine.chain.height
    stage.nobody_trains()
    stage.go_on(3.0)
    stage.rise()
    for node in (first, early):
        node.worker.form()
    stage.go_on(0.5)
    stage.tell(f"{first.name} stands still")
    first.pause()
    stage.go_on(2.5)
    late.worker.form()
    stage.go_on(0.5)
    stage.tell(f"{first.name} runs again, with what came meanwhile in its inbox")
    first.resume()
    stage.until(lambda: stage.all_at(height + 1))
    stage.swarm.is_training = True
    assert {len(propose.contributions) for propose in stage.said(Propose, first)} == {3}
    assert not stage.failures()
    return stage


@story("18-full-disk", "A full disk stops one site only", "R2 R12 R17")
def full_disk() -> Stage:
    """B cannot write its promise, so it must not vote: it says Leaving and stops. A goes on. When there is space
    again, B starts from what is on its disk."""
    stage = Stage()
    other, full = stage.enter("AB")
    stage.warm_up()
    stage.until(lambda: stage.exchanging(2))
    height = other.machine.chain.height
    stage.rise()
    stage.tell("the disk of B is full")
    full.disk.is_full = True
    stage.until(lambda: other.machine.chain.height > height)
    assert stage.did(c.LeaveFinished, full)
    full.disk.is_full = False
    stage.start(full)
    return stage


@story("19-half", "quorum = majority: half is not more than half", "R14")
def half() -> Stage:
    """Of two, each is one half. Cut apart, each has a contribution and nobody to commit it with: both wait. If half
    were enough, both would go on, and there would be two chains. When the network is whole again, they commit
    together."""
    stage = Stage()
    stage.swarm.limits = replace(stage.swarm.limits, has_majority_quorum=True)
    left, right = stage.enter("AB")
    stage.warm_up()
    assert left.machine.chain.recent_contributors == {left.name, right.name}
    height = left.machine.chain.height
    stage.nobody_trains()
    stage.rise()
    stage.cut([left], [right], is_cut=True)
    for node in stage.nodes:
        node.worker.form()
    stage.until(lambda: all("majority" in node.machine.status.waiting_for for node in stage.nodes))
    stage.go_on(20.0)
    assert [node.machine.chain.height for node in stage.nodes] == [height, height]
    stage.cut([left], [right], is_cut=False)
    stage.until(lambda: stage.all_at(height + 1))
    assert stage.swarm.ledger.num_forks() == 0
    stage.swarm.is_training = True
    return stage


STORIES = (leaving, late_joiner, late_contribution, majority, frozen, full_disk, half)
