"""Whether p2pd hangs: it is asked by somebody who may have stood still as well."""

import errno

import pytest

from dilocoxd.errors import PeerError
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


def failure(cause: BaseException | None) -> PeerError:
    error = PeerError("list peers")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "cause", [None, OSError(errno.EMFILE, "too many open files"), OSError(errno.ENOMEM, "no memory")], ids=str
)
def test_a_refusal_and_what_we_lack_ourselves_are_no_silence(cause: BaseException | None) -> None:
    silence = Silence()
    for _ in range(10):
        silence.failed(failure(cause), 0.0, ANSWER_S)
    assert not silence.is_hung


@pytest.mark.parametrize("cause", [TimeoutError(), ConnectionRefusedError(errno.ECONNREFUSED, "refused"), EOFError()])
def test_no_answer_and_no_socket_are_silence(cause: BaseException) -> None:
    silence = Silence()
    for _ in range(MUTE_MAX):
        silence.failed(failure(cause), ANSWER_S, ANSWER_S)
    assert silence.is_hung
