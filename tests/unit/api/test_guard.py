"""Who is answered: host names, tokens, other web pages, rates, connections, sizes; control reaches the daemon."""

import asyncio
import contextlib
import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
import uvloop
from yarl import URL

from dilocoxd.answers.site import Problem
from dilocoxd.api import connections as listening
from dilocoxd.api.guard import host_of, is_own_name
from tests.harness.certificates import self_signed
from tests.harness.shapes import assert_shape
from tests.unit.api.serving import TOKEN, served

COMMANDS: list[tuple[str, Any, tuple[str, ...]]] = [
    ("pause", {"reason": "a move"}, ("pause", "a move")),
    ("pause", None, ("pause", "asked for over the API")),
    ("resume", {}, ("resume",)),
    ("leave", None, ("leave",)),
    ("snapshot", {}, ("snapshot",)),
    ("log-level", {"level": "debug"}, ("log-level", "debug")),
    ("reach", {}, ("reach",)),
    ("profile", {"steps": 50}, ("profile", "50")),
    ("profile", {"steps": 35.0}, ("profile", "35")),
    ("profile", None, ("profile", "5")),
]


@pytest.mark.parametrize(("name", "body", "asked"), COMMANDS)
async def test_command_with_the_token_reaches_the_daemon(name: str, body: Any, asked: tuple[str, ...]) -> None:
    async with served() as api:
        more = {"json": body} if body is not None else {}
        answer = await api.ask(f"/v1/control/{name}", "POST", token=TOKEN, **more)
        assert answer.status == 200, answer.body
        assert api.control.asked == [asked]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], "\u00e4" * 20])
async def test_command_without_the_token_does_nothing(token: str) -> None:
    async with served() as api:
        answer = await api.ask("/v1/control/leave", "POST", token=token)
        assert (answer.status, answer.kind) == (401, "application/problem+json")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert api.control.asked == []


async def test_daemon_without_a_token_takes_no_commands() -> None:
    async with served(token="") as api:
        assert (await api.ask("/v1/control/leave", "POST", token="anything")).status == 403
        assert api.control.asked == []


async def test_command_that_the_daemon_refuses_is_a_conflict() -> None:
    async with served() as api:
        api.control.refusal = "the site is not paused"
        answer = await api.ask("/v1/control/resume", "POST", token=TOKEN)
        assert (answer.status, answer.body["detail"]) == (409, "the site is not paused")


BAD_BODIES: list[tuple[dict[str, Any], int]] = [
    ({"data": b"{", "headers": {"Content-Type": "application/json"}}, 400),
    ({"data": b"[" * 9000, "headers": {"Content-Type": "application/json"}}, 400),
    ({"data": b"level=debug", "headers": {"Content-Type": "text/plain"}}, 415),
    ({"data": b"no gzip", "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}}, 415),
    ({"json": {"level": "loud"}}, 400),
    ({"json": {"level": "debug", "more": 1}}, 400),
    ({"json": []}, 400),
    ({"data": b"x" * 20_000, "headers": {"Content-Type": "application/json"}}, 413),
]


@pytest.mark.parametrize(("more", "status"), BAD_BODIES)
async def test_bad_body_is_refused(more: dict[str, Any], status: int) -> None:
    async with served() as api:
        answer = await api.ask("/v1/control/log-level", "POST", token=TOKEN, **more)
        assert answer.status == status
        assert_shape(Problem, json.dumps(answer.body))
        assert api.control.asked == []


@pytest.mark.parametrize("steps", [0, 51, -1, "2", 2.5, None])
async def test_a_profile_has_1_to_50_steps(steps: Any) -> None:
    async with served() as api:
        answer = await api.ask("/v1/control/profile", "POST", token=TOKEN, json={"steps": steps})
        assert (answer.status, api.control.asked) == (400, [])
        assert "steps" in answer.body["detail"]


@pytest.mark.parametrize("prompt", ["", "x" * 201, "a\x00b", 3, None])
async def test_a_prompt_is_a_short_text(prompt: Any) -> None:
    async with served() as api:
        answer = await api.ask("/v1/control/sample", "POST", token=TOKEN, json={"prompt": prompt})
        assert (answer.status, api.control.asked) == (400, [])
        assert "prompt" in answer.body["detail"]


async def test_other_host_names_are_refused_and_own_ones_answered() -> None:
    async with served(names=("site-a.example.org",)) as api:
        port = api.url.rpartition(":")[2]
        for host in ("evil.example", "127.0.0.1.evil.example", "evil.example.:80", "[::1].evil.example"):
            answer = await api.ask("/v1/status", headers={"Host": host})
            assert (answer.status, answer.kind) == (421, "application/problem+json"), host
        for host in (
            f"127.0.0.1:{port}",
            "localhost",
            "[::1]:80",
            "site-a:8080",
            "Site-A.example.org:1",
            "a.localhost",
        ):
            assert (await api.ask("/v1/status", headers={"Host": host})).status == 200, host


def test_hosts_are_read_as_browsers_write_them() -> None:
    assert [host_of(text) for text in ("A:1", "a", "[::1]:80", "[::1]", "::1")] == ["a", "a", "::1", "::1", "::1"]
    assert not is_own_name("1.2.3.4.5", frozenset())
    assert is_own_name("10.1.2.3", frozenset())


async def test_pages_of_others_can_neither_act_nor_read() -> None:
    async with served() as api:
        theirs = {"Origin": "http://evil.example"}
        answer = await api.ask("/v1/control/leave", "POST", token=TOKEN, headers=theirs)
        assert (answer.status, api.control.asked) == (403, [])
        read = await api.ask("/v1/status", headers=theirs)
        assert "Access-Control-Allow-Origin" not in read.headers
        assert (await api.ask("/v1/control/leave", "OPTIONS", headers=theirs)).status in (401, 403, 405)
        own = {"Origin": api.url}
        assert (await api.ask("/v1/control/leave", "POST", token=TOKEN, headers=own)).status == 200


async def test_reading_can_need_the_token() -> None:
    async with served(read_needs_token=True) as api:
        for path in ("/v1/status", "/metrics", "/v1/events"):
            assert (await api.ask(path)).status == 401
        assert (await api.ask("/v1/status", token=TOKEN)).status == 200
        assert (await api.ask("/healthz")).status == 200


async def test_too_many_requests_are_refused_and_recover() -> None:
    async with served(requests_per_s_max=5) as api:
        answers = [await api.ask("/healthz") for _ in range(40)]
        refused = [answer for answer in answers if answer.status == 429]
        assert refused and refused[0].headers["Retry-After"] == "1"
        assert {answer.status for answer in answers} == {200, 429}


async def open_raw(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_connections_beyond_the_limit_are_told_so() -> None:
    async with served(connections_max=4) as api:
        held = [await open_raw(api.url) for _ in range(4)]
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while True:
                reader, writer = await open_raw(api.url)
                text = await reader.read()
                writer.close()
                if text:
                    break
        assert text.startswith(b"HTTP/1.1 503 ") and b"api.connections_max" in text
        for _, other in held:
            other.close()


def test_one_beyond_the_limit_is_told_so_on_the_loop_of_the_daemon() -> None:
    """Transports of uvloop are no asyncio.Transport."""

    async def answer_of_one_more() -> bytes:
        async with served(connections_max=4) as api:
            held = [await open_raw(api.url) for _ in range(5)]
            async with asyncio.timeout(20):
                found = await held[4][0].read()
            for _, writer in held:
                writer.close()
            return found

    text = uvloop.run(answer_of_one_more())
    assert text.startswith(b"HTTP/1.1 503 ") and b"api.connections_max" in text


async def test_an_address_that_a_name_has_twice_is_listened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As glibc says of localhost where /etc/hosts has it for 127.0.0.1 and for ::1."""
    there = asyncio.get_running_loop().getaddrinfo

    async def twice(*asked: Any, **more: Any) -> Any:
        return 2 * await there(*asked, **more)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", twice)
    async with served() as api:
        assert (await api.ask("/healthz")).status == 200


async def test_an_address_that_this_kernel_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ::1 of localhost where IPv6 is off; X.25 is what no kernel here has."""
    there = asyncio.get_running_loop().getaddrinfo

    async def with_another(*asked: Any, **more: Any) -> Any:
        found = await there(*asked, **more)
        return [(socket.AF_X25, *found[0][1:]), *found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", with_another)
    async with served() as api:
        assert (await api.ask("/healthz")).status == 200


async def test_handshakes_that_never_end_are_no_more_than_connections(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    async with served(connections_max=4, tls_certificate=str(certificate), tls_key=str(key)) as api:
        port = int(api.url.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        async with asyncio.timeout(5):
            for reader, _ in held[4:]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        for _, writer in held:
            writer.close()


async def test_connection_that_never_asks_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening.Connections.__init__, "__defaults__", (0.1,))
    async with served() as api:
        silent, writer = await open_raw(api.url)
        dribbling, slow = await open_raw(api.url)
        slow.write(b"GET /v1/status HTTP/1.1\r\nHost: local")
        async with asyncio.timeout(20):
            for reader in (silent, dribbling):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        for one in (writer, slow):
            one.close()


@pytest.mark.parametrize(
    "request_line", [b"\0\1\2\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 20_000]
)
async def test_garbage_is_answered_or_closed_and_harms_nobody(request_line: bytes) -> None:
    async with served() as api:
        reader, writer = await open_raw(api.url)
        writer.write(request_line)
        writer.write_eof()
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4"))
        writer.close()
        assert (await api.ask("/healthz")).status == 200


NO_REQUESTS = [
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",  # TLS
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v1/control/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/control/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
]


@pytest.mark.parametrize("sent", NO_REQUESTS)
async def test_what_is_no_request_is_no_news_to_the_operator(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Each put the stack of the HTTP library on the terminal or into the journal, and a scanner sends hundreds."""
    async with served() as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(api.url).port)
        writer.write(sent)
        assert b" 40" in await reader.readline()
        writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
