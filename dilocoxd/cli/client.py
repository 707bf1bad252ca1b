"""Talks to the HTTP API of a daemon (docs/internals.md 6); without an HTTP library, so that it starts at once."""

import contextlib
import difflib
import http.client
import json
import os
import re
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from dilocoxd.cli.shell.token_variable import TOKEN_VARIABLE as TOKEN_VARIABLE
from dilocoxd.errors import ConfigError, PeerError

DEFAULT_URL = "http://127.0.0.1:8080"
STATUS = "/v1/status"
CONFLICT = 409
UNAUTHORIZED = 401
ANSWER_BYTES_MAX = 64 << 20
_TOKEN: Final = re.compile(r"[\x21-\x7e]*")
"""What a header can carry, without blanks."""
_NO_ANSWER: Final = (OSError, ValueError, RecursionError, http.client.HTTPException)
"""What comes instead of an answer; the last two from who is no daemon."""
Answer = TypeVar("Answer")
Body = Mapping[str, str | int] | None


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Where the API is and how to be let in."""

    url: str
    token: str = ""
    certificate: str = ""
    """PEM file to trust, from the run directory; empty: what the system trusts."""
    is_guessed: bool = False
    """Nobody named the daemon, and we are in no run directory."""
    run_directory: str = ""
    """Whose daemon it should be; empty: of whom the URL leads to."""
    run_id: str = ""
    """Of that directory."""
    _seen: list[str] = field(default_factory=list, compare=False)
    """The run of the daemon, once it was looked at: most answers do not name theirs."""

    def _open(self, path: str, body: Body, timeout_s: float) -> Any:
        request = urllib.request.Request(self.url + path, method="GET" if body is None else "POST")
        if body is not None:
            request.data = json.dumps(body).encode("utf-8")
            request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        context = None
        if self.url.startswith("https:"):
            context = ssl.create_default_context(cafile=self.certificate or None)
        return urllib.request.urlopen(request, timeout=timeout_s, context=context)

    def ask(self, path: str, kind: type[Answer], body: Body = None, *, timeout_s: float = 5.0) -> Answer:
        """The answer to GET `path`, or to POST with a body. Raises PeerError with what to do.

        What a newer daemon says on top is left out; what an older one does not say is an error.
        """
        return self.read(path, kind, self.ask_json(path, body, timeout_s=timeout_s))

    def read(self, path: str, kind: type[Answer], found: object) -> Answer:
        """What `path` answered, as its class. Raises PeerError."""
        try:
            return TypeAdapter(kind).validate_python(found)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the answer"
            raise PeerError(
                f"{self.url}{path} is not a dilocoxd daemon, or one of another version ({where}: {first['msg']});"
                " check api.port"
            ) from error

    def ask_json(self, path: str, body: Body = None, *, timeout_s: float = 5.0) -> Any:
        """The same as it came, for `--json`. Raises PeerError, also where the daemon is that of another run."""
        if self.run_id and body is None and not self._seen:  # what is done needs that site's token
            status = self._answer(STATUS, None, timeout_s)
            self._require_run(status)
            self._seen.append(self.run_id)
            if path == STATUS:
                return status
        return self._answer(path, body, timeout_s)

    def _require_run(self, status: Any) -> None:
        other = status.get("run_id", self.run_id) if isinstance(status, dict) else self.run_id
        if other != self.run_id:
            raise PeerError(
                f"the daemon at {self.url} is of run {other}, and {self.run_directory} of run {self.run_id}: two sites"
                " have one api.port; give this one another with `dilocoxd config set"
                f" {shlex.quote(self.run_directory)} api.port=PORT`, and start it again"
            )

    def _answer(self, path: str, body: Body, timeout_s: float) -> Any:
        try:
            with self._open(path, body, timeout_s) as answer:
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except _NO_ANSWER as error:
            raise self._failure(path, error) from error

    def _failure(self, path: str, error: Exception) -> PeerError:
        """What to do where no answer came, or one that is an error."""
        if isinstance(error, urllib.error.HTTPError):
            with error:
                return self._refusal(path, error)
        silent = f"{self.url}{path} does not answer ({in_words(error)})"
        if self.is_guessed:
            return PeerError(
                f"{silent}; this folder is no run directory: give RUN_DIR or the daemon's URL, and check that the"
                " daemon runs and that api.port is right"
            )
        if self.run_directory:
            return PeerError(
                f"{silent}; if the daemon does not run, start it with `dilocoxd run {shlex.quote(self.run_directory)}`"
            )
        return PeerError(f"{silent}; check that the daemon runs and that api.port is right")

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> PeerError:
        """About an answer that is an error: the daemon's own sentence, unless it is about a token."""
        if error.code != UNAUTHORIZED:
            return PeerError(refusal(self.url + path, error))
        if self.run_directory and self.token:
            return PeerError(
                f"the daemon at {self.url} does not take the token of {self.run_directory}: another site's daemon"
                f" answers there; see which with `dilocoxd status {self.url}`"
            )
        return PeerError(
            f"{self.url}{path} wants a token: give the site's RUN_DIR instead of the URL, or put what is in its file"
            f" api.token into {TOKEN_VARIABLE}"
        )

    def lines(self, path: str, *, timeout_s: float = 30.0) -> Any:
        """The answer as a file object of lines; the caller closes it. Raises PeerError."""
        try:
            return self._open(path, None, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(path, error) from error


def in_words(error: Exception) -> str:
    """Why nobody answered, without the number of the error."""
    if isinstance(error, http.client.HTTPException | json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "what answers there is no dilocoxd daemon's API"  # another program's words could drive a terminal
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason)


def refusal(where: str, error: urllib.error.HTTPError) -> str:
    """One sentence about an answer that is an error: the daemon's own, if it gave one."""
    try:
        detail = json.loads(error.read(1 << 16))["detail"]
    except (ValueError, KeyError, TypeError, OSError):
        detail = ""
    if error.code == CONFLICT and detail:
        return str(detail)  # the daemon understood, and says why it does not do it
    return f"{where} answers {error.code} {error.reason}: {detail or 'this may not be a dilocoxd daemon'}"


def no_such_directory(target: str) -> str:
    """What to say of a target that is neither a folder nor host:port."""
    parent = Path(target).parent
    runs = [path.parent.name for path in parent.glob("*/run.toml")] if parent.is_dir() else []
    near = difflib.get_close_matches(Path(target).name, runs, n=1, cutoff=0.5)
    hint = f"did you mean {parent / near[0]}?" if near else "give a run directory, or host:port of a daemon's API"
    return f"there is no such run directory; {hint}"


def given_token() -> str:
    """What the environment names; empty: nothing. Raises ConfigError."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if _TOKEN.fullmatch(token) is None:
        raise ConfigError(
            f"{TOKEN_VARIABLE} in the environment is no token (blanks or letters that no token has); put what is in the"
            " site's file api.token into it, or leave it out"
        )
    return token


def checked_url(url: str) -> str:
    """`url` without the stroke at its end. Raises ConfigError where nobody can be asked."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, half a pair of brackets
        is_one = False
    if not is_one or re.search(r"[\x00-\x20\x7f]", url):
        raise ConfigError(
            f"{url!r} is no address of a daemon's API; give a run directory, or an address like http://127.0.0.1:8080"
        )
    return url.rstrip("/")


def client_for(target: str | None) -> ApiClient:
    """The API behind a URL, a host:port or a run directory; None: the run directory we are in, or the default."""
    if target is None:
        if not Path("run.toml").is_file():
            return ApiClient(DEFAULT_URL, given_token(), is_guessed=True)
        target = "."
    if "://" in target:
        return ApiClient(checked_url(target), given_token())
    if not Path(target).is_dir():
        if ":" not in target.partition("/")[0]:
            raise ConfigError(f"{target}: {no_such_directory(target)}")
        return ApiClient(checked_url(f"http://{target}"), given_token())
    # Only here: who names a URL, or is in no run directory, waits for no model of a configuration.
    from dilocoxd.store.rundir import open_run_dir

    run_dir = open_run_dir(Path(target))
    manifest, site = run_dir.load()
    if site.api.port == 0:
        raise ConfigError(
            f"{target}: api.port = 0, so this site has no API; give it one with"
            f" `dilocoxd config set {shlex.quote(target)} api.port=8080`, and start it again"
        )
    own = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):  # reading needs none, and a command says what is missing
        own = (run_dir.path / site.api.token_file).read_text("ascii").strip()
    return ApiClient(
        site.api.base_url,
        own or given_token(),  # a variable may be left over from another site
        site.api.tls_certificate,
        run_directory=target,
        run_id=str(manifest.run_id),
    )
