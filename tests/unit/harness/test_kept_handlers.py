"""A test that runs a command's `main` leaves pytest to be ended as before."""

import signal
import sys

import pytest

from dilocoxd.cli.main import main
from tests.harness.kept_handlers import ENDS, kept_handlers


def test_what_a_command_sets_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["dilocoxd", "--version"])
    for number in ENDS:
        signal.signal(number, signal.SIG_DFL)  # what is ignored, as under nohup, stays so
    with kept_handlers():
        with pytest.raises(SystemExit):
            main()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert {signal.getsignal(number) for number in ENDS} == {signal.SIG_DFL}


@pytest.mark.parametrize("turn", range(2))
def test_no_test_finds_what_another_has_set(turn: int) -> None:
    """Whichever of the two comes first."""
    for number in ENDS:
        assert signal.getsignal(number) is not _set, turn
        signal.signal(number, _set)


def _set(*_: object) -> None:
    pass
