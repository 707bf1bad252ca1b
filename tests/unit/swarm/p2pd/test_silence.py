"""Whether p2pd hangs: it is asked by somebody who may have stood still as well."""

from dilocoxd.swarm.p2pd.supervisor import ANSWER_S, LATE_S, MUTE_MAX, Silence


def asked(*waited_s: float | None) -> Silence:
    silence = Silence()
    for one in waited_s:
        if one is None:
            silence.answered()
        else:
            silence.unanswered(one, ANSWER_S)
    return silence


def test_one_that_answers_nothing_hangs_after_as_many_questions_as_it_gets() -> None:
    assert not asked(*[ANSWER_S] * (MUTE_MAX - 1)).is_hung
    assert asked(*[ANSWER_S] * MUTE_MAX).is_hung


def test_only_questions_in_a_row_count() -> None:
    assert not asked(*[ANSWER_S] * (MUTE_MAX - 1), None, *[ANSWER_S] * (MUTE_MAX - 1)).is_hung


def test_control_sockets_that_refuse_at_once_are_no_answer() -> None:
    assert asked(*[0.0] * MUTE_MAX).is_hung


def test_what_was_not_answered_while_we_stood_still_ourselves_says_nothing() -> None:
    assert not asked(*[ANSWER_S + LATE_S + 0.1] * 100).is_hung
    assert asked(3600.0, *[ANSWER_S + LATE_S] * MUTE_MAX).is_hung
