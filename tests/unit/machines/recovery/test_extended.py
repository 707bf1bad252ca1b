"""Who claims something since a recovery began is asked, too (R22.7)."""

import pytest

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.comparison import Comparison, ToCompare
from tests.unit.daemon.chain.chain_maker import GENESIS
from tests.unit.machines.recovery.recovery_world import NUM_CHUNKS, Donor, World, grown

COMMON = grown([], 3, b"c")
AHEAD = grown(COMMON, 20, b"a")
NOW = Monotonic(0.0)
SLOW, LATER = PeerId("D"), PeerId("E")
PART_S = 0.9
"""Of the time for an answer: what the first donor takes for each."""


def _beside_a_slow_donor(kind: type, *, page: int = 40, donor: Donor | None = None) -> tuple[World, float]:
    """(the world after it, how long it took). The slow one is alone in the order; another one is heard of as the first
    question of this kind is asked."""
    first = donor or Donor(AHEAD, 0, ())
    world = World(COMMON, {SLOW: first})
    slow_s = PART_S * world.limits.answer_timeout_s

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer:
        if isinstance(question, kind) and LATER not in world.donors:
            world.donors[LATER] = Donor(first.log, first.payloads_from, first.snapshots)
            world.machine.extend([LATER, LATER])
        if isinstance(answer, r.EntriesCame) and question.peer == SLOW:
            return r.EntriesCame(answer.request, answer.entries[:page])
        return answer

    world.twist = twist
    world.latency_s = lambda question: slow_s if question.peer == SLOW and isinstance(question, kind) else 0.1
    began = world.now
    assert not world.run().failure
    assert world.log == AHEAD
    return world, (world.now - began) / slow_s


@pytest.mark.parametrize(
    ("kind", "page", "donor"),
    [
        (r.AskEntries, 1, None),
        (r.AskPayload, 40, None),
        (r.AskChunk, 40, Donor(AHEAD, 20, (20,))),
    ],
    ids=["entries", "payloads", "a snapshot"],
)
def test_who_is_heard_of_later_is_asked_soon(kind: type, page: int, donor: Donor | None) -> None:
    world, num_waits = _beside_a_slow_donor(kind, page=page, donor=donor)
    assert num_waits < 3, f"{num_waits} times what the slow one takes"
    assert world.questions(kind)[-1].peer == LATER


def test_a_search_begins_again_only_when_twice_as_many_are_known() -> None:
    names = [PeerId(f"L{number}") for number in range(NUM_CHUNKS - 1)]
    world = World(COMMON, {SLOW: Donor(AHEAD, 20, (20,))})
    waiting = list(names)

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer:
        if isinstance(question, r.AskChunk) and waiting:
            name = waiting.pop()
            world.donors[name] = Donor(COMMON)
            world.machine.extend([name])
        return answer

    world.twist = twist
    assert not world.run().failure
    assert world.log == AHEAD
    # With 1, 2 and 4 sources; two more are known at the end.
    assert len([q for q in world.questions(r.AskSnapshots) if q.peer == SLOW]) == 3


def test_what_was_compared_is_not_held_up_by_those_who_come_later() -> None:
    world = World(AHEAD, {SLOW: Donor(COMMON)})
    world.twist = lambda question, answer: (world.machine.extend([LATER]), answer)[1]
    done = world.run()
    assert not done.failure and done.unasked == done.added == (LATER,)
    assert not any(question.peer == LATER for question in world.asked)


def test_where_nobody_of_the_order_answers_the_others_are_compared() -> None:
    world = World(COMMON, {SLOW: Donor(AHEAD, is_silent=True)})
    world.donors[LATER] = Donor(AHEAD)
    world.machine.extend([LATER])
    assert not world.run().failure
    assert world.log == AHEAD


def test_who_was_put_aside_comes_behind_those_who_were_not_asked_and_keeps_it_going_only_if_it_was_ordered() -> None:
    a, b = PeerId("A"), PeerId("B")
    turns = ToCompare([a, b])
    assert turns.pop() == a
    turns.put_aside(Comparison(a, [GENESIS], 9), now=NOW)
    turns.add([LATER, a])
    assert turns.left == (b, LATER, a) and not turns.is_over
    assert (turns.pop(), turns.pop()) == (b, LATER)
    turns.put_aside(Comparison(LATER, [GENESIS], 9), now=NOW)
    aside = turns.pop()
    assert isinstance(aside, Comparison) and aside.peer == a
    assert turns.left == (LATER,) and turns.is_over


@pytest.mark.parametrize("num_first", [1, 3])
def test_who_is_heard_of_while_a_snapshot_is_looked_for_in_vain_is_asked_too(num_first: int) -> None:
    """Those of the order have dropped the payload, and have no snapshot: that alone is no reason to turn back."""
    branch = AHEAD[:8]
    world = World(COMMON, {f"D{number}": Donor(branch, 5) for number in range(num_first)})

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer:
        if isinstance(question, r.AskSnapshots) and LATER not in world.donors:
            world.donors[LATER] = Donor(branch)
            world.machine.extend([LATER])
        return answer

    world.twist = twist
    done = world.run()
    assert not done.failure and not done.unavailable
    assert world.log == branch


def test_snapshot_whose_last_chunk_has_come_is_not_looked_for_again() -> None:
    world = World(COMMON, {SLOW: Donor(AHEAD, 20, (20,))}, present=frozenset(range(1, NUM_CHUNKS)))

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer:
        if isinstance(question, r.AskChunk):
            world.donors[LATER] = Donor(COMMON, is_silent=True)
            world.machine.extend([LATER])
        return answer

    world.twist = twist
    assert not world.run().failure
    assert world.log == AHEAD and LATER in world.donors
    assert not any(question.peer == LATER for question in world.questions(r.AskSnapshots))
