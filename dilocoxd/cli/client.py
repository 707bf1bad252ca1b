"""Reads the HTTP API of a daemon (docs/internals.md 6); nothing but the standard library, so that it starts at once."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from dilocoxd.errors import PeerError
from dilocoxd.store.rundir import open_run_dir

DEFAULT_URL = "http://127.0.0.1:8080"
ANSWER_BYTES_MAX = 64 << 20


def api_url(target: str | None) -> str:
    """The API's address: a URL as it is, a run directory's own, or the default."""
    if target is None:
        return DEFAULT_URL
    if "://" in target:
        return target.rstrip("/")
    if Path(target).is_dir():
        _, site = open_run_dir(Path(target)).load()
        return f"http://{site.api.host}:{site.api.port}"
    return f"http://{target.rstrip('/')}"


def get_json(url: str, path: str, *, timeout_s: float = 5.0) -> Any:
    """Answer of GET `path`. Raises PeerError with what to do when nobody answers."""
    try:
        with urllib.request.urlopen(url + path, timeout=timeout_s) as answer:
            return json.loads(answer.read(ANSWER_BYTES_MAX))
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise PeerError(
            f"{url}{path} does not answer ({reason}); check that the daemon runs and that api.port is right"
        ) from error
