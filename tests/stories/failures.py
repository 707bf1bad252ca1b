"""Stories of attempts that fail: a member dies, or the coordinator dies, at each place of a round."""

from dilocoxd.ids import Attempt
from dilocoxd.machines.round import outputs as c
from dilocoxd.machines.round.inputs import MessageReceived
from dilocoxd.wire.messages import Abandon, Accept, Propose, ProposeCommit, Ready, Vote
from tests.stories.stage import Stage
from tests.stories.story import story


def _three_exchange(seed: int = 7) -> tuple[Stage, int]:
    """(three peers in the exchange of one attempt, the height at which they stand)."""
    stage = Stage(seed)
    stage.enter("ABC")
    stage.warm_up()
    stage.until(lambda: stage.exchanging(3))
    stage.rise()
    return stage, stage.nodes[0].machine.chain.height


@story("05-member-dies", "A failed attempt: a member dies in the exchange", "R2 R4 R5 R12")
def member_dies() -> Stage:
    """C, a contributor, is killed while segments are on their way. When membership takes it for gone, attempt 0 has
    failed; A and B promise attempt 1, form a group of two, and commit."""
    stage, height = _three_exchange()
    *others, victim = stage.nodes
    stage.crash(victim)
    stage.until(lambda: stage.all_at(height + 1, others))
    assert any("lost C" in reason for reason in stage.failures())
    assert {propose.attempt for propose in stage.said(Propose)} == {1}
    stage.start(victim)
    return stage


@story("06-member-stalls", "A failed attempt: a member lives, but sends nothing", "R6 R8 R12")
def member_stalls() -> Stage:
    """C says everything that it should, but its segments never leave. Nothing moves for the progress time-out: who
    lacks an input of C says Abandon and blames it. Who is blamed is not in one group with the other for three
    rounds: C observes in attempt 1."""
    stage = Stage()
    *others, staller = stage.enter("ABC")
    stage.warm_up()
    height = staller.machine.chain.height
    stage.lies(staller, "stalls")
    stage.until(lambda: stage.all_in("exchanging"))
    stage.rise()
    stage.until(lambda: stage.all_at(height + 1, others))
    assert any(staller.name in abandon.blames for abandon in stage.said(Abandon))
    assert staller.name in stage.said(Propose)[-1].observers
    return stage


@story("07-observer-goes-on", "An observer goes on without having accepted", "R2 R5 R8 R10")
def observer_goes_on() -> Stage:
    """One contributes alone, the other observes, and its Accept is lost. It is restarted, and its Ready names
    attempt 1: it may take part in another group there. So the contributor must not commit attempt 0, although it
    has all votes, its own. Locked on its entry it goes to attempt 1 too. There the other one stands as well and has
    promised nothing to anybody: the lock is finished, and the observer takes the entry."""
    stage = Stage()
    contributor, observer = stage.enter("AB", observers="B")
    stage.warm_up()
    height = contributor.machine.chain.height
    stage.swarm.is_dropped = lambda source, message: isinstance(message, Accept)
    stage.until(lambda: contributor.machine.status.state == "voting")
    stage.rise()
    before, chain = contributor.machine.status, contributor.machine.chain
    later = Ready(before.round, Attempt(before.attempt + 1), chain.head, chain.state_digest, None, None, None, 0)
    stage.tell("every Accept of B was lost, and B says that it is in attempt 1")
    contributor.feed(MessageReceived(observer.name, later))
    stage.lose_nothing()
    assert contributor.machine.status.attempt == before.attempt + 1
    stage.until(lambda: stage.all_at(height + 1))
    assert any("went on to attempt 1" in reason for reason in stage.failures())
    return stage


@story("08-coordinator-dies-gathering", "The coordinator dies while all gather", "R4 R5 R6")
def coordinator_dies_gathering() -> Stage:
    """Everybody waits for a proposal of the first candidate, and it is gone. When a group is possible and nobody
    proposes it for the coordinator's patience, a peer goes to attempt 1; there another one is the first
    candidate."""
    stage = Stage()
    stage.enter("ABC")
    stage.warm_up()
    height = stage.nodes[0].machine.chain.height
    (first,) = [node for node in stage.nodes if "a proposal of" not in node.machine.status.waiting_for]
    others = stage.rest(first)
    stage.until(lambda: any(node.offered is not None for node in others))
    stage.rise()
    stage.crash(first)
    stage.until(lambda: stage.all_at(height + 1, others), 90.0)
    assert any("no proposal of" in reason for reason in stage.failures())
    assert {len(propose.contributions) for propose in stage.said(Propose)} == {2}
    stage.start(first)
    return stage


@story("09-coordinator-dies-exchanging", "The coordinator dies while segments are exchanged", "R2 R4 R12")
def coordinator_dies_exchanging() -> Stage:
    """Once the group is formed the coordinator is a member like any other: attempt 0 fails when it counts as lost,
    and the first candidate of attempt 1 proposes those who are left."""
    stage, height = _three_exchange(8)
    first = stage.coordinator()
    others = stage.rest(first)
    stage.tell(f"{first.name} coordinates")
    stage.crash(first)
    stage.until(lambda: stage.all_at(height + 1, others))
    assert any(f"lost {first.name}" in reason for reason in stage.failures())
    stage.start(first)
    return stage


@story("10-coordinator-dies-voting", "The coordinator dies, its own vote lost: the others are locked", "R3 R13")
def coordinator_dies_voting() -> Stage:
    """All three have all results, but the vote of the coordinator reaches nobody, and it is killed. The others are
    locked on the entry. They do not know whether it was committed, so they do not begin anew: attempt 1 finishes
    the locked entry, by the votes of those who are left. The first one comes back, still locked, and asks before it
    acts."""
    stage, height = _three_exchange()
    first = stage.coordinator()
    others = stage.rest(first)
    stage.lose(
        f"every vote of {first.name}", lambda source, message: source == first.name and isinstance(message, Vote)
    )
    stage.until(lambda: all(stage.said(Vote, node) for node in stage.nodes))
    stage.crash(first)
    stage.lose_nothing()
    stage.until(lambda: stage.all_at(height + 1, others), 120.0)
    stage.nobody_trains()
    stage.start(first)
    stage.until(lambda: stage.all_at(height + 1))
    stage.swarm.is_training = True
    assert stage.said(ProposeCommit)
    assert len({order.signed.entry for order in stage.did(c.PersistEntry)}) == 1
    return stage


@story("11-coordinator-dies-committing", "The coordinator dies when it has committed alone", "R10 R13")
def coordinator_dies_committing() -> Stage:
    """The coordinator has all votes and writes the entry; its own vote and its Committed are lost, and it is
    killed. The others, locked on the same entry, finish it in attempt 1: entries name no attempt, so it is the same
    entry with the same hash, and nothing forks."""
    stage, height = _three_exchange()
    first = stage.coordinator()
    others = stage.rest(first)
    stage.lose(f"everything that {first.name} says", lambda source, message: source == first.name)
    stage.until(lambda: len(first.disk.log) > height)
    stage.crash(first)
    stage.lose_nothing()
    stage.until(lambda: stage.all_at(height + 1, others), 120.0)
    stage.start(first)
    stage.until(lambda: any(ready.round == height + 1 for ready in stage.said(Ready, first)))
    assert stage.said(ProposeCommit)
    assert stage.swarm.ledger.num_forks() == 0
    return stage


@story("12-restart-after-a-vote", "A voter restarts: what it promised is on its disk", "R2 R3 R13")
def restart_after_a_vote() -> Stage:
    """Both vote, but all votes are lost, and B is killed. It starts with its promise: one attempt further, still
    locked on the entry, the payload still held. A, which had waited for the vote in vain, and B finish the locked
    entry."""
    stage = Stage()
    _, voter = stage.enter("AB")
    stage.warm_up()
    stage.until(lambda: stage.exchanging(2))
    height = voter.machine.chain.height
    stage.rise()
    stage.lose("every vote", lambda source, message: isinstance(message, Vote))
    stage.until(lambda: all(stage.said(Vote, node) for node in stage.nodes))
    stage.crash(voter)
    stage.lose_nothing()
    stage.go_on(1.0)
    stage.start(voter)
    stage.until(lambda: stage.all_at(height + 1), 120.0)
    ready = stage.said(Ready, voter)
    assert any(one.lock is not None and one.lock.results_held and one.attempt > 0 for one in ready)
    assert len({order.signed.entry for order in stage.did(c.PersistEntry)}) == 1
    return stage


STORIES = (
    member_dies,
    member_stalls,
    observer_goes_on,
    coordinator_dies_gathering,
    coordinator_dies_exchanging,
    coordinator_dies_voting,
    coordinator_dies_committing,
    restart_after_a_vote,
)
