"""A newcomer that is told to end while it asks, or was given a name that does not exist."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilocoxd.cli.shell.helper_ends import end_by_exception
from dilocoxd.errors import ConfigError
from dilocoxd.swarm.discovery import bootstrap
from dilocoxd.swarm.discovery.asking import run_asking
from dilocoxd.swarm.discovery.bootstrap import NAMES_MAX_S, RESOLVE_TIMEOUT_S, Access, JoinError, fetch_manifest
from tests.harness.running.run_directories import free_port
from tests.integration.swarm.members import Member, a_manifest, running
from tests.integration.swarm.sites import until

HANG_S = 900.0
TOLD = """
import asyncio, os, signal, sys
from dilocoxd.cli.shell.helper_ends import end_by_exception
from dilocoxd.swarm.discovery.bootstrap import Access, fetch_manifest
def tell(line):
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), getattr(signal, sys.argv[2]))
signal.signal(signal.SIGINT, signal.default_int_handler)
end_by_exception()
try:
    fetch_manifest(Access((sys.argv[1],), 60, tell))
except KeyboardInterrupt:
    sys.exit(130)
"""
"""Gets the signal between two tries. Ctrl-C counts also where the tests are a job in a shell's background, where it
is ignored, and what is ignored stays so."""


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of a command, and then those of before."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)  # nohup ignores one of them, and what is ignored stays so
    end_by_exception()
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.processes
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_between_two_tries_ends_it_without_a_word(name: str, code: int) -> None:
    asked = [sys.executable, "-c", TOLD, f"127.0.0.1:{free_port()}", name]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (ended.returncode, ended.stderr, ended.stdout) == (code, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_takes_leave_still_has_its_helpers(handlers: None, number: signal.Signals) -> None:
    """The signal's exception stopped the loop: p2pd's tasks were cancelled with all else, and its goodbye took 3 s."""
    goodbyes: list[str] = []

    async def answer(asked: asyncio.Event) -> None:
        await asked.wait()
        goodbyes.append("answered")

    async def work() -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        helper = loop.create_task(answer(asked))
        loop.call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            asked.set()
            await asyncio.wait([helper])

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        run_asking(work())
    assert ended.value.code == 128 + number
    assert goodbyes == ["answered"]
    assert signal.getsignal(number) is before


def test_signal_that_came_with_the_answer_is_not_lost(handlers: None) -> None:
    """An answer that was there already is given in spite of a cancellation; the command then went on, for days."""

    async def work() -> str:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "the answer"

    with pytest.raises(SystemExit) as ended:
        run_asking(work())
    assert ended.value.code == 128 + signal.SIGTERM


def no_name(reason: int) -> socket.gaierror:
    return socket.gaierror(reason, "Name or service not known")


@pytest.mark.processes
def test_a_name_that_does_not_exist_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for again until the time was up; who can ask no name server may be able to in a moment."""
    asked: list[str] = []
    told: list[str] = []

    def resolve(host: str, *_: object, **__: object) -> object:
        asked.append(host)
        is_online = host != "later.example" or asked.count(host) > 1
        raise no_name(socket.EAI_NONAME if is_online else socket.EAI_AGAIN)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(bootstrap, "RETRY_FIRST_S", 0.0)
    with pytest.raises(ConfigError, match=r"^the name 'gone\.example' is not known .*; check how it is written, or"):
        fetch_manifest(Access(("gone.example",), HANG_S, told.append))
    assert asked == ["gone.example"] and told == [], "the error says it"
    with pytest.raises(ConfigError, match=r"the name 'later\.example' is not known"):
        fetch_manifest(Access(("later.example",), HANG_S, told.append))
    assert asked.count("later.example") == 2
    with pytest.raises(JoinError):  # the other address may lead to somebody yet
        fetch_manifest(Access(("gone.example", f"127.0.0.1:{free_port()}"), 0.2, told.append))


@pytest.mark.processes
def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waited at its end until the resolver had given up, a minute later."""
    is_over = threading.Event()

    def resolve(*_: object, **__: object) -> object:
        is_over.wait(HANG_S)
        raise no_name(socket.EAI_AGAIN)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(bootstrap, "RESOLVE_TIMEOUT_S", 0.1)
    try:
        with pytest.raises(JoinError, match=r"no answer from DNS for 'slow\.example'; check how it is written"):
            fetch_manifest(Access(("slow.example",), 0.5, print))
    finally:
        is_over.set()


@pytest.mark.processes
def test_names_that_nobody_knows_are_not_asked_for_till_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> object:
        raise no_name(socket.EAI_AGAIN)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(bootstrap, "NAMES_MAX_S", 0.0)
    with pytest.raises(JoinError, match=r"^no site of the run was reached \(tried once\): the name 'foo' is not known"):
        fetch_manifest(Access(("foo",), HANG_S, print))
    assert NAMES_MAX_S + RESOLVE_TIMEOUT_S < 40


@pytest.mark.processes
async def test_a_site_that_runs_goes_on_asking_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have started before its name server: the name does not exist at first."""
    manifest, asked = a_manifest(), 0
    a = Member(tmp_path / "a", manifest)

    def resolve(host: str, *_: object, **__: object) -> object:
        nonlocal asked
        assert host == "later.example"
        asked += 1
        if asked == 1:
            raise no_name(socket.EAI_NONAME)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))]

    async with running(a):
        port = (await a.swarm.node.addresses())[0].split("/")[4]
        b = Member(tmp_path / "b", manifest, bootstrap=(f"later.example:{port}",))
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        async with running(b):
            await until(lambda: b.knows(a), "b to find a by its name")
    assert asked > 1
