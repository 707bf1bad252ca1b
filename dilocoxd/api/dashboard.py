"""Serves the dashboard: the files of `static/`, from memory, with tags, and with headers that let it load nothing else.

The page is plain HTML, CSS and JavaScript modules (no build step); uPlot (MIT), shipped in `static/vendor`, draws the
charts.
"""

import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

from dilocoxd.api.responses.etags import GZIP_LEVEL, takes_gzip
from dilocoxd.api.responses.problems import ProblemError

KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX: Final = "index.html"
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Page:
    """One file."""

    body: bytes
    kind: str
    tag: str
    packed: bytes
    """The body in gzip."""


def pages(folder: Traversable | None = None, prefix: str = "") -> dict[str, Page]:
    """All files that a browser may ask for, by path below `static/`."""
    root = folder if folder is not None else resources.files("dilocoxd.api") / "static"
    found: dict[str, Page] = {}
    for item in root.iterdir():
        name = f"{prefix}{item.name}"
        ending = item.name[item.name.rfind(".") :] if "." in item.name else ""
        if item.is_dir():
            found.update(pages(item, f"{name}/"))
        elif ending in KINDS:
            body = item.read_bytes()
            tag = hashlib.sha256(body).hexdigest()[:32]
            found[name] = Page(body, KINDS[ending], tag, gzip.compress(body, GZIP_LEVEL, mtime=0))
    return found


class Dashboard:
    """The handlers of `/` and `/static/...`."""

    def __init__(self) -> None:
        self._pages = pages()

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [web.get("/", self._index), web.get("/static/{name:.+}", self._file)]

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._answer(request, INDEX)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._answer(request, request.match_info["name"])

    def _answer(self, request: web.Request, name: str) -> web.StreamResponse:
        page = self._pages.get(name)
        if page is None:
            raise ProblemError(404, "Not Found", f"the dashboard has no file {name[:80]!r}")
        headers = {**HEADERS, "ETag": f'W/"{page.tag}"', "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = page.kind
        if not takes_gzip(request.headers.get("Accept-Encoding", "")):
            return web.Response(body=page.body, headers=headers)
        return web.Response(body=page.packed, headers={**headers, "Content-Encoding": "gzip"})
