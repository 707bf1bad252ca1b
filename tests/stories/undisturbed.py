"""Stories without a fault: rounds of one, two and three, and one that only observes."""

from dilocoxd.machines.round import outputs as c
from dilocoxd.wire.messages import Accept, Propose, Vote
from tests.stories.stage import Stage
from tests.stories.story import story


@story("01-two-peers", "An undisturbed round of two", "R1 R3 R4 R6 R7 R9 R10")
def two_peers() -> Stage:
    """A and B train side by side. Each offers the pseudo-gradient of a phase; the coordinator proposes the group;
    each reduces the segments that it owns; both vote for the same entry, and commit it."""
    stage = Stage()
    stage.enter("AB")
    stage.warm_up()
    stage.round_of(2, is_brief=False)
    assert {vote.vote.peer for vote in stage.said(Vote)} == {"A", "B"}
    assert not stage.failures()
    return stage


@story("02-three-peers", "An undisturbed round of three", "R1 R4 R6 R7 R9 R10")
def three_peers() -> Stage:
    """As before, with three: every segment has one owner, who sums what the others send and gives the result to
    all. Nobody commits before it has the votes of all three."""
    stage = Stage()
    stage.enter("ABC")
    stage.warm_up()
    stage.round_of(3, is_brief=False)
    assert all(len(order.signed.votes) == 3 for order in stage.did(c.PersistEntry))
    assert not stage.failures()
    return stage


@story("03-alone", "A lone peer goes on", "R6 R10 R14")
def alone() -> Stage:
    """With `quorum = available` one peer alone is a group: it exchanges with itself, its own vote is all votes."""
    stage = Stage()
    (only,) = stage.enter("A")
    stage.warm_up()
    height = only.machine.chain.height
    stage.rise()
    stage.until(lambda: stage.all_at(height + 1))
    assert [order.signed.entry.round for order in stage.did(c.PersistEntry)] == [height]
    return stage


@story("04-observer", "An observer receives, accepts and commits", "R4 R8 R10")
def observer() -> Stage:
    """A and B train, C does not. C promises with Accept to take part in no other group of this attempt; only then
    do A and B commit. C gets all results and the votes, and commits the same entry."""
    stage = Stage()
    _, _, watcher = stage.enter("ABC", observers="C")
    stage.warm_up()
    stage.round_of(2, is_brief=True)
    assert stage.said(Accept, watcher)
    assert not stage.said(Vote, watcher)
    assert all(watcher.name in propose.observers for propose in stage.said(Propose))
    return stage


STORIES = (two_peers, three_peers, alone, observer)
