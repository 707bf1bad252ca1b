"""Puts the API together: routes from the table of endpoints, handlers, and what stands before them.

Order of the middlewares, outermost first: counting, problem documents, bookkeeping of connections, guard.
"""

from typing import Final

from aiohttp import web

from dilocoxd.api.commands import Controlling
from dilocoxd.api.connections import Connections
from dilocoxd.api.dashboard import Dashboard
from dilocoxd.api.endpoints import ENDPOINTS
from dilocoxd.api.guard import RequestGuard
from dilocoxd.api.interface import Control, View
from dilocoxd.api.queries import Reading
from dilocoxd.api.request_metrics import Usage
from dilocoxd.api.responses.etags import BodyCache
from dilocoxd.api.responses.problems import Handler, problems
from dilocoxd.api.settings import ApiSettings
from dilocoxd.api.stream import EventStream

REQUEST_BYTES_MAX: Final = 16 * 1024


class Api:
    """The aiohttp application and the parts that live as long as it does."""

    def __init__(self, view: View, control: Control, settings: ApiSettings) -> None:
        self.connections = Connections(settings.section.connections_max)
        self.stream = EventStream(view.status, settings.section.streams_max)
        cache = BodyCache()
        usage = Usage()
        self._reading = Reading(view, cache, usage)
        self._controlling = Controlling(control, cache.clear)
        middlewares = [usage.middleware, problems, self.connections.middleware, RequestGuard(settings).middleware]
        self.app = web.Application(middlewares=middlewares, client_max_size=REQUEST_BYTES_MAX)
        self.app.add_routes([web.route(e.method, e.path, self._handler(e.name, e.method)) for e in ENDPOINTS])
        self.app.add_routes(Dashboard().routes())
        view.listen(self.stream.on_event)

    def _handler(self, name: str, method: str) -> Handler:
        if name == "events":
            return self.stream.serve
        owner = self._reading if method == "GET" else self._controlling
        handler: Handler = getattr(owner, name)
        return handler
