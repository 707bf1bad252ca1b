"""How threads of workers wait for each other: briefly, unless the operator says otherwise."""

import pytest

from dilocoxd.daemon.site.launch import SPIN_VARIABLES, fork_server_environment


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SPIN_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_threads_sleep_soon_where_other_processes_want_the_cores() -> None:
    assert fork_server_environment() == {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000"}


@pytest.mark.parametrize("name", SPIN_VARIABLES)
def test_what_the_operator_chose_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "PASSIVE")
    assert fork_server_environment() == {"OMP_NUM_THREADS": "1"}
