"""Requests that change something: reads and checks the body, hands the command to the daemon, tells what came of it."""

import json
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web
from pydantic import ValidationError

from dilocoxd.answers.site import CommandDone
from dilocoxd.api.interface import Control
from dilocoxd.api.requests import (
    AddressRequest,
    AdoptRequest,
    ChangeAuthoritiesRequest,
    EmptyRequest,
    EvictRequest,
    LogLevelRequest,
    PauseRequest,
    PeerRequest,
    ProfileRequest,
    RequestBody,
    SampleRequest,
    SiteRequest,
    VoteAuthoritiesRequest,
)
from dilocoxd.api.responses.encoding import json_answer
from dilocoxd.api.responses.problems import ProblemError, bad_request

Body = TypeVar("Body", bound=RequestBody)


async def body_of(request: web.Request, model: type[Body]) -> Body:
    """The JSON body as `model`; no body is an empty object. Raises ProblemError."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        # Commands are short, and what cannot be unpacked would be found within the reading of it.
        raise ProblemError(415, "Unsupported Media Type", "send the body as it is, without Content-Encoding")
    raw = await request.read()
    if raw and request.content_type != "application/json":
        raise ProblemError(415, "Unsupported Media Type", "send the body as application/json")
    try:
        return model.model_validate(json.loads(raw) if raw else {}, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise bad_request(f"{where}: {first['msg']}"[:300]) from error
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON ({error})"[:300]) from error


class Controlling:
    """The handlers; names are those of the endpoints. Who may call them is decided by guard.py."""

    def __init__(self, control: Control, changed: Callable[[], None]) -> None:
        self._control = control
        self._changed = changed

    def _done(self, text: str) -> web.Response:
        self._changed()
        return json_answer(CommandDone(ok=True, text=text))

    async def pause(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, PauseRequest)
        return self._done(self._control.pause(asked.reason))

    async def resume(self, request: web.Request) -> web.StreamResponse:
        await body_of(request, EmptyRequest)
        return self._done(self._control.resume())

    async def leave(self, request: web.Request) -> web.StreamResponse:
        await body_of(request, EmptyRequest)
        return self._done(self._control.leave())

    async def snapshot(self, request: web.Request) -> web.StreamResponse:
        await body_of(request, EmptyRequest)
        return self._done(self._control.snapshot())

    async def start_profile(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, ProfileRequest)
        return self._done(await self._control.profile(asked.steps))

    async def start_sample(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, SampleRequest)
        return self._done(await self._control.sample(asked.prompt))

    async def reach(self, request: web.Request) -> web.StreamResponse:
        await body_of(request, EmptyRequest)
        return json_answer(await self._control.reach())

    async def ping(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, SiteRequest)
        return json_answer(await self._control.ping(asked.site))

    async def connect(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, AddressRequest)
        return self._done(await self._control.connect(asked.address))

    async def disconnect(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, SiteRequest)
        return self._done(await self._control.disconnect(asked.site))

    async def evict(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, EvictRequest)
        return self._done(self._control.evict(asked.revocation))

    async def vote_eviction(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, PeerRequest)
        return self._done(self._control.vote_eviction(asked.peer_id))

    async def adopt(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, AdoptRequest)
        return self._done(self._control.adopt(asked.target))

    async def change_authorities(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, ChangeAuthoritiesRequest)
        return self._done(self._control.change_authorities(asked.change))

    async def vote_authorities(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, VoteAuthoritiesRequest)
        return self._done(self._control.vote_authorities(asked.terms))

    async def log_level(self, request: web.Request) -> web.StreamResponse:
        asked = await body_of(request, LogLevelRequest)
        return self._done(self._control.set_log_level(asked.level))
