"""Stories of peers that break the protocol: what they say is refused, and they are named; the others go on."""

from dataclasses import replace

from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, is_better
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.messages import Abandon, Propose, Ready, ResultHashes
from tests.simulation.peer.disk import Stored
from tests.simulation.peer.node import Node
from tests.stories.stage import Stage
from tests.stories.story import story


@story("30-refused-proposal", "A proposal that breaks the rules is refused", "R4 R7")
def refused_proposal() -> Stage:
    """The coordinator proposes phases that are in the chain already. The others refuse that and report its sender;
    after their patience they go to attempt 1, where another peer proposes."""
    stage = Stage()
    stage.enter("ABC")
    stage.warm_up()
    (liar,) = [node for node in stage.nodes if "a proposal of" not in node.machine.status.waiting_for]
    honest = stage.rest(liar)

    def lie(node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if not isinstance(message, Propose):
            return [message]
        counted = node.disk.log[-1].signed
        return [replace(message, contributions=counted.entry.contributions, offers=counted.offers)]

    stage.lies(liar).messages = lie  # type: ignore[method-assign]
    stage.until(lambda: sum(node.offered is not None for node in stage.nodes) == 2)
    stage.rise()
    stage.until(lambda: all(node.machine.status.state == "exchanging" for node in honest))
    assert set(stage.reported("bad_proposal")) == {liar.name}
    assert all(node.machine.status.attempt == 1 for node in honest)
    return stage


@story("31-two-results", "An owner gives different bytes to different peers", "R9 R10 R11")
def two_results() -> Stage:
    """C reduces a segment and gives A and B different results for it. The votes differ, so nothing is committed.
    Everybody says what it holds: the owner of the segment in which two of them differ is blamed, and is in no group
    with them."""
    stage = Stage()
    *honest, liar = stage.enter("ABC")
    stage.warm_up()
    stage.until(lambda: stage.exchanging(3))
    height = liar.machine.chain.height
    stage.lies(liar, "equivocates")
    stage.rise()
    stage.tell("C will give each peer another result of the segment that it reduces")
    stage.until(lambda: stage.all_at(height + 1, honest), 120.0)
    assert stage.said(ResultHashes)
    assert any(abandon.blames == (liar.name,) for abandon in stage.said(Abandon))
    return stage


@story("32-far-attempt", "A claim of a far attempt is not believed", "R5")
def far_attempt() -> Stage:
    """Every Ready of C names attempt 1000. Nobody else is beyond attempt 0, so nobody follows it there; it is
    reported, and the round goes on in attempt 0. The machine of C is not shown."""
    stage = Stage()
    *honest, liar = stage.enter("ABC")
    stage.warm_up()
    height = liar.machine.chain.height

    def lie(node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        return [replace(message, attempt=Attempt(1000)) if isinstance(message, Ready) else message]

    stage.rise(only="AB")
    stage.lies(liar).messages = lie  # type: ignore[method-assign]
    stage.tell("from now on every Ready of C names attempt 1000")
    stage.until(lambda: stage.all_at(height + 1, honest), 120.0)
    assert stage.reported("attempt_jump")
    assert all(propose.attempt < 64 for propose in stage.said(Propose))
    return stage


@story("33-false-branch", "A branch on a state that never was is left again", "R20 R21 R22 L15")
def false_branch() -> Stage:
    """A liar shows a branch that is heavier than that of B, with votes that are valid, its own. B leaves its branch
    for it, finds that the entries name a state to which no payload leads, turns back, and takes the liar's word for
    nothing: what B had is its chain again."""
    stage = Stage()
    liar, honest = stage.enter("AB")
    stage.warm_up()
    stage.nobody_trains()
    stage.until(stage.swarm.is_settled)
    before, log = honest.machine.chain.head, honest.disk.log
    mischief = stage.lies(liar, "forges_a_branch")
    while not _is_heavier_and_half_true(stage, liar, log):
        mischief.forge(liar)
    tip = mischief.forged[-1].signed.entry
    mischief.forge = lambda node: None  # type: ignore[method-assign]
    mischief.messages = lambda *_: []  # type: ignore[method-assign]
    claimed = replace(liar.machine.chain, height=RoundIndex(tip.round + 1), head=entry_hash(tip))
    mischief.chain = lambda own: claimed  # type: ignore[method-assign]
    stage.rise()
    stage.tell(f"A says that it stands at height {claimed.height}, at the end of a branch that it has made up")
    stage.until(lambda: bool(stage.did(r.TurnBack, honest)) and not honest.is_recovering, 120.0)
    assert honest.machine.chain.head == before
    stage.swarm.is_training = True
    return stage


def _is_heavier_and_half_true(stage: Stage, liar: Node, log: list[Stored]) -> bool:
    """Its first entry belongs on a state that B has too; a later one does not; all together they outweigh B's own."""
    assert liar.mischief is not None
    forged = liar.mischief.forged
    fork = next((i for i, (a, b) in enumerate(zip(forged, log, strict=False)) if a != b), None)
    if fork is None or len(forged) < fork + 2:
        return False
    branch = Branch(fork, tuple(stored.signed for stored in forged[fork:]))
    part = Branch(fork, branch.entries[:1])
    own = [stored.signed.entry for stored in log[fork:]]
    is_true = forged[fork].signed.entry.state_digest == log[fork].signed.entry.state_digest
    return is_true and is_better(branch, own) and not is_better(part, own)


STORIES = (refused_proposal, two_results, far_attempt, false_branch)
