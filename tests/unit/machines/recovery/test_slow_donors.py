"""A donor that answers each question just before its time is over: it keeps nobody from those who answer at once."""

from dilocoxd.machines.recovery import interface as r
from tests.unit.machines.recovery.recovery_world import Donor, World, grown

COMMON = grown([], 4, b"common")
AHEAD = grown(COMMON, 10, b"x")
ALL_BUT_LAST = AHEAD[:-1]
LATE = 0.9
"""Of the time that an answer may take."""


def _slow(world: World, kind: type[r.Ask], part: float = LATE) -> World:
    """ "A" gives one entry at a time, and takes its time for each answer of this kind."""
    patience_s = world.limits.answer_timeout_s

    def latency_s(question: r.Ask) -> float:
        return part * patience_s if question.peer == "A" and isinstance(question, kind) else 0.1

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer:
        is_cut = question.peer == "A" and isinstance(answer, r.EntriesCame)
        return r.EntriesCame(answer.request, answer.entries[:1]) if is_cut else answer  # type: ignore[union-attr]

    world.latency_s, world.twist = latency_s, twist
    return world


def test_who_gives_one_entry_at_a_time_is_asked_for_more_after_the_others() -> None:
    world = _slow(World(COMMON, {"A": Donor(AHEAD), "B": Donor(AHEAD)}), r.AskEntries)
    started = world.now
    assert not world.run().failure
    assert world.log == AHEAD
    assert world.now - started < world.limits.answer_timeout_s, "one answer of A was waited for"
    assert world.machine.status.late == (("A", "gives few entries at a time, and late"),)
    assert world.done is not None and world.done.unasked == ("A",)


def test_who_alone_has_a_chain_gives_it_however_slowly() -> None:
    world = _slow(World(COMMON, {"A": Donor(AHEAD), "B": Donor(COMMON)}), r.AskEntries)
    assert not world.run().failure
    assert world.log == AHEAD
    first = [q.first for q in world.questions(r.AskEntries) if q.peer == "A"]  # type: ignore[union-attr]
    assert first == sorted(set(first)), "what came before the others were compared is not asked for again"


def test_whose_payload_was_late_is_asked_for_the_next_one_after_the_others() -> None:
    world = World(COMMON, {"A": Donor(AHEAD), "B": Donor(ALL_BUT_LAST)})
    world = _slow(world, r.AskPayload)
    assert not world.run().failure
    assert world.log == AHEAD
    by_a = [q.signed.entry.round for q in world.questions(r.AskPayload) if q.peer == "A"]  # type: ignore[union-attr]
    assert by_a == [4, 13], "the first one, and the one that nobody else has"


def test_whose_payload_came_in_time_and_slowly_is_compared_with_the_others() -> None:
    """Just under any bound it would else be asked for each of them."""
    world = World(COMMON, {"A": Donor(AHEAD), "B": Donor(AHEAD), "C": Donor(AHEAD)})
    world = _slow(world, r.AskPayload, part=0.45)
    patience_s, of_a = world.limits.answer_timeout_s, world.latency_s
    world.latency_s = lambda ask: 0.2 * patience_s if ask.peer == "B" and isinstance(ask, r.AskPayload) else of_a(ask)
    assert not world.run().failure
    assert world.log == AHEAD
    asked = [question.peer for question in world.questions(r.AskPayload)]
    assert asked == ["A", "B", *["C"] * (len(asked) - 2)], "each once, and then the fastest"


def test_quick_donor_is_asked_for_all_payloads() -> None:
    world = World(COMMON, {"A": Donor(AHEAD), "B": Donor(AHEAD, is_silent=True)})
    assert not world.run().failure
    assert {question.peer for question in world.questions(r.AskPayload)} == {"A"}


def test_who_failed_is_asked_after_who_is_slow() -> None:
    world = World(COMMON, {"A": Donor(AHEAD), "B": Donor(COMMON)})
    world = _slow(world, r.AskPayload, part=0.45)
    assert not world.run().failure
    asked = [question.peer for question in world.questions(r.AskPayload)]
    assert asked.count("B") == 1, "it has none of them"
