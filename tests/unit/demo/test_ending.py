"""The demo is ended as any command is: by ^C, by a supervisor, by a terminal that is closed."""

import signal
from collections.abc import Iterator

import pytest

from tests.demo.__main__ import ENDING, EndedError, take_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_command_unwinds_it_once(number: signal.Signals) -> None:
    assert number in ENDING
    for one in ENDING:  # a shell in the background has us ignore ^C
        signal.signal(one, signal.SIG_DFL)
    take_signals()
    with pytest.raises(EndedError, match=number.name) as ended:
        signal.raise_signal(number)
    assert ended.value.exit_code == 128 + number
    for again in ENDING:
        signal.raise_signal(again)  # heard by nobody: what unwinds is not cut short


def test_what_is_ignored_at_the_start_stays_so() -> None:
    """`nohup make demo` outlives its terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    take_signals()
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(EndedError, match="SIGTERM"):
        signal.raise_signal(signal.SIGTERM)
