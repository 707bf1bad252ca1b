"""The HTTP API answers every documented path, refuses everything else as problem+json, and bounds its parameters."""

from typing import Any

import pytest
from aiohttp import ClientSession

from dilocoxd.api.app import PAGE_MAX
from dilocoxd.api.server import serve_api
from dilocoxd.errors import ConfigError


class FakeView:
    """A view with remembered arguments."""

    def __init__(self) -> None:
        self.is_healthy = True
        self.is_ready = False
        self.asked: list[tuple[int, int]] = []

    def status(self) -> dict[str, Any]:
        return {"state": "joining", "waiting_for": "an answer of the first peer"}

    def peers(self) -> list[dict[str, Any]]:
        return [{"peer_id": "QmA"}]

    def rounds(self, first: int, limit: int) -> list[dict[str, Any]]:
        self.asked.append((first, limit))
        return [{"round": first}]

    def losses(self) -> dict[str, Any]:
        return {"inner": [[1.0, 1, 3.5]], "validation": []}

    def timeline(self) -> list[dict[str, Any]]:
        return [{"kind": "compute", "start": 1.0, "end": 2.0, "round": 0}]

    def metrics(self) -> str:
        return "dilocoxd_height 3\n"


async def get(session: ClientSession, url: str) -> tuple[int, str, Any]:
    async with session.get(url) as response:
        kind = response.content_type
        return response.status, kind, await (response.text() if kind == "text/plain" else response.json())


async def test_documented_paths_answer() -> None:
    view = FakeView()
    async with serve_api(view, "127.0.0.1", 0) as (host, port), ClientSession() as session:
        base = f"http://{host}:{port}"
        assert (await get(session, f"{base}/v1/status"))[2]["state"] == "joining"
        assert (await get(session, f"{base}/v1/peers"))[2] == [{"peer_id": "QmA"}]
        assert (await get(session, f"{base}/v1/losses"))[2]["inner"] == [[1.0, 1, 3.5]]
        assert (await get(session, f"{base}/v1/timeline"))[2][0]["kind"] == "compute"
        assert (await get(session, f"{base}/metrics"))[:3] == (200, "text/plain", "dilocoxd_height 3\n")
        assert (await get(session, f"{base}/healthz"))[0] == 200


async def test_not_ready_says_what_is_awaited() -> None:
    view = FakeView()
    async with serve_api(view, "127.0.0.1", 0) as (host, port), ClientSession() as session:
        status, kind, body = await get(session, f"http://{host}:{port}/readyz")
        assert (status, kind) == (503, "application/problem+json")
        assert body["detail"] == "an answer of the first peer"
        view.is_ready = True
        assert (await get(session, f"http://{host}:{port}/readyz"))[0] == 200


async def test_round_page_is_bounded() -> None:
    view = FakeView()
    async with serve_api(view, "127.0.0.1", 0) as (host, port), ClientSession() as session:
        base = f"http://{host}:{port}/v1/rounds"
        await get(session, f"{base}?from=7&limit=999999")
        assert view.asked == [(7, PAGE_MAX)]


@pytest.mark.parametrize("query", ["from=-1", "from=x", "limit=1e3", "limit=" + "9" * 40, "from="])
async def test_bad_query_is_a_problem_document(query: str) -> None:
    async with serve_api(FakeView(), "127.0.0.1", 0) as (host, port), ClientSession() as session:
        status, kind, body = await get(session, f"http://{host}:{port}/v1/rounds?{query}")
        assert (status, kind) == (400, "application/problem+json")
        assert "query parameter" in body["detail"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/statu", "/v2/status"])
async def test_unknown_path_is_a_problem_document(path: str) -> None:
    async with serve_api(FakeView(), "127.0.0.1", 0) as (host, port), ClientSession() as session:
        status, kind, _ = await get(session, f"http://{host}:{port}{path}")
        assert (status, kind) == (404, "application/problem+json")


async def test_only_get_is_allowed() -> None:
    async with serve_api(FakeView(), "127.0.0.1", 0) as (host, port), ClientSession() as session:
        response = await session.post(f"http://{host}:{port}/v1/status", json={})
        assert response.status == 405
        assert response.content_type == "application/problem+json"


async def test_port_in_use_is_a_configuration_error() -> None:
    async with serve_api(FakeView(), "127.0.0.1", 0) as (host, port):
        with pytest.raises(ConfigError, match=f"port {port}"):
            async with serve_api(FakeView(), host, port):
                raise AssertionError("two servers on one port")
