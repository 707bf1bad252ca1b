"""The event stream: order, resumption, keep-alive, and clients that are slow, too many or too late."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientResponse

from dilocoxd.api import stream as stream_module
from dilocoxd.api.responses.encoding import encoded
from dilocoxd.api.responses.problems import ProblemError
from dilocoxd.api.stream import Client, EventStream
from tests.harness.synthetic.fake_view import FakeView
from tests.unit.api.serving import Served, served

PATIENCE_S = 120.0


async def read_message(response: ClientResponse) -> dict[str, Any]:
    """The next message that is not a comment: event, id and data."""
    found: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            line = (await response.content.readline()).decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if name in ("event", "id"):
                found[name] = value
            elif name == "data":
                found["data"] = json.loads(value)
            elif not line and "data" in found:
                return found


async def opened(api: Served, last_id: str = "") -> ClientResponse:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    response = await api.session.get(api.url + "/v1/events", headers=headers)
    assert (response.status, response.content_type) == (200, "text/event-stream")
    return response


async def test_events_arrive_in_order_after_reset_and_status() -> None:
    async with served() as api:
        response = await opened(api)
        first = [await read_message(response) for _ in range(2)]
        assert [one["event"] for one in first] == ["reset", "status"]
        for index in range(3):
            api.view.emit(event="round.committed", round=index)
        rounds = [await read_message(response) for _ in range(3)]
        assert [one["data"]["round"] for one in rounds] == [0, 1, 2]
        assert {one["event"] for one in rounds} == {"event"}
        response.close()


async def test_client_that_comes_back_gets_exactly_what_it_missed() -> None:
    async with served() as api:
        response = await opened(api)
        await read_message(response)
        api.view.emit(event="a", n=0)
        seen = await read_message(response)
        while seen["event"] != "event":
            seen = await read_message(response)
        response.close()
        for index in (1, 2):
            api.view.emit(event="a", n=index)
        again = await opened(api, seen["id"])
        assert [(await read_message(again))["data"]["n"] for _ in range(2)] == [1, 2]
        assert (await read_message(again))["event"] == "status"
        again.close()


async def test_client_of_an_earlier_life_is_told_to_start_anew() -> None:
    async with served() as api:
        response = await opened(api, "abc123-7")
        assert (await read_message(response))["event"] == "reset"
        response.close()
        assert (await api.ask("/v1/events", headers={"Last-Event-ID": "what?"})).status == 400


async def test_status_is_told_when_it_changed() -> None:
    async with served() as api:
        response = await opened(api)
        for _ in range(2):
            await read_message(response)
        first = await read_message(response)
        api.view.num_rounds += 1
        second = await read_message(response)
        assert first["event"] == second["event"] == "status"
        assert second["data"]["height"] == first["data"]["height"] + 1
        response.close()


async def test_quiet_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "KEEP_ALIVE_S", 0.05)
    async with served() as api:
        response = await opened(api)
        async with asyncio.timeout(PATIENCE_S):
            while (await response.content.readline()) != b": keep-alive\n":
                pass
        response.close()


async def test_streams_beyond_the_limit_are_refused() -> None:
    async with served(streams_max=1) as api:
        response = await opened(api)
        await read_message(response)
        refused = await api.ask("/v1/events")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
        response.close()


async def test_client_that_does_not_read_is_cut_off_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "WRITE_S", 0.2)
    async with served() as api:
        host, _, port = api.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readexactly(12)
        other = await opened(api)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                while True:  # the daemon emits as fast as it can and never waits for this client
                    for _ in range(100):
                        api.view.emit(event="big", text="x" * 20_000)
                    await asyncio.sleep(0.01)
                    writer.write(b"\r\n")
                    await writer.drain()
        assert (await api.ask("/healthz")).status == 200
        other.close()
        writer.close()


def test_queue_of_a_client_is_bounded() -> None:
    client = Client()
    for _ in range(stream_module.QUEUE_MAX + 10):
        client.put(b"x")
    assert client.is_lost
    client.finish()


def test_only_what_is_kept_can_be_resumed() -> None:
    stream = EventStream(FakeView().status, 1)
    for index in range(stream_module.HISTORY + 5):
        stream.on_event({"event": "a", "n": index})
    life = stream.missed("0-0")[0].decode().split("id: ")[1].split("-")[0]
    assert len(stream.missed(f"{life}-5")) == stream_module.HISTORY
    assert b"event: reset" in stream.missed(f"{life}-4")[0]
    assert stream.missed(f"{life}-{stream_module.HISTORY + 5}") == []
    assert b"event: reset" in stream.missed(f"{life}-{stream_module.HISTORY + 6}")[0]
    for bad in ("", "-", "x-", "x-1-2", "x-" + "9" * 60, "\u00e4-1"):
        with pytest.raises(ProblemError):
            stream.missed(bad)


def test_values_have_no_line_breaks() -> None:
    assert b"\n" not in encoded({"text": "a\nb\r\u2028"})
