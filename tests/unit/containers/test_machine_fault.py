"""A fault of the machine is tried again and named; everything else fails at once."""

import subprocess

import pytest

from tests.containers.machine_fault import TRIES, MachineFaultError, attempted, is_machine_fault

FROZEN = "docker pause dlx-b: status 1\nError response from daemon: cannot pause container: unable to freeze"


class Engine:
    """Fails as often as it is told, then works."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.calls = 0
        self.told: list[str] = []

    def act(self) -> str:
        self.calls += 1
        if self._failures:
            raise self._failures.pop(0)
        return "done"

    def attempt(self, command: str) -> str:
        return attempted(command, self.act, self.told.append, pause_s=0.0)


def test_freezer_that_gives_up_is_tried_again_and_told() -> None:
    engine = Engine(AssertionError(FROZEN), AssertionError(FROZEN))
    assert engine.attempt("pause") == "done"
    assert engine.calls == 3
    assert len(engine.told) == 2
    assert "the machine's fault, try 1" in engine.told[0]
    assert "unable to freeze" in engine.told[0]


def test_machine_that_always_fails_is_named() -> None:
    engine = Engine(*[AssertionError(FROZEN)] * TRIES)
    with pytest.raises(MachineFaultError, match="for the machine's sake"):
        engine.attempt("pause")
    assert engine.calls == TRIES


@pytest.mark.parametrize(
    ("command", "said"),
    [("pause", "No such container: dlx-b"), ("exec", FROZEN), ("stop", "resource busy"), ("run", FROZEN)],
)
def test_any_other_failure_is_passed_on_at_once(command: str, said: str) -> None:
    engine = Engine(AssertionError(said))
    with pytest.raises(AssertionError):
        engine.attempt(command)
    assert engine.calls == 1
    assert not engine.told


def test_engine_that_does_not_answer_is_tried_again_but_not_a_command_in_a_container() -> None:
    late = subprocess.TimeoutExpired("docker", 300.0)
    assert Engine(late).attempt("network") == "done"
    with pytest.raises(subprocess.TimeoutExpired):
        Engine(late).attempt("exec")


def test_removal_of_what_is_being_removed_is_the_machines_fault() -> None:
    assert is_machine_fault("rm", "removal of container dlx-a is already in progress")
