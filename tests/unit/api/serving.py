"""Starts the API over a made-up view, and asks it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession

from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from tests.harness.synthetic.fake_view import FakeControl, FakeView

TOKEN = "0123456789abcdef0123"


@dataclass
class Answer:
    """One answer, read whole."""

    status: int
    kind: str
    headers: Any
    body: Any


@dataclass
class Served:
    """A running API and a client for it."""

    view: FakeView
    control: FakeControl
    url: str
    session: ClientSession

    async def ask(self, path: str, method: str = "GET", *, token: str = "", **more: Any) -> Answer:
        headers = dict(more.pop("headers", {}))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.request(method, self.url + path, headers=headers, **more) as response:
            is_json = response.content_type.endswith("json") and response.status != 304
            body = await (response.json(content_type=None) if is_json else response.text())
            return Answer(response.status, response.content_type, response.headers, body)


@contextlib.asynccontextmanager
async def served(num_rounds: int = 3, token: str = TOKEN, **section: Any) -> AsyncIterator[Served]:
    """The API on a free port of loopback."""
    view, control = FakeView(num_rounds), FakeControl()
    async with (
        serve_api(view, control, ApiSection(port=0, **section), token) as (host, port),
        ClientSession() as client,
    ):
        yield Served(view, control, f"http://{host}:{port}", client)
