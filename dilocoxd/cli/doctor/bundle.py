"""`dilocoxd doctor RUN_DIR --bundle`: one archive for whoever is asked for help, without a secret in it.

In it: findings, configuration, events, ends of the workers' logs, answers of the API, versions, names and sizes of
files. Never: keys, tokens, invites, training text, weights, payloads. Files are chosen, not left out: what nobody
thought of stays at home. What is in it is scrubbed of the tokens that this site knows, and of all that is named like a
secret.
"""

import contextlib
import io
import json
import pickle
import platform
import re
import stat
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from dilocoxd import __version__
from dilocoxd.cli.client import ApiClient
from dilocoxd.config.loading import read_toml
from dilocoxd.errors import ConfigError, PeerError
from dilocoxd.ipc.hang_files import TIMEOUT_PREFIX
from dilocoxd.store.rundir import RunDir
from dilocoxd.telemetry.masking import MASK, masked_table

LOG_BYTES_MAX: Final = 512 << 10
"""Of the end of each log file."""
EVENT_BYTES_MAX: Final = 4 << 20
RECORD_BYTES_MAX: Final = 32 << 20
ENTRIES_SHOWN: Final = 100
"""Newest collectives of a record of NCCL."""
SECRET_CHARS_MIN: Final = 8
ANSWERS: Final = ("status", "peers", "alerts", "rounds?limit=100", "snapshots", "config")
_NAMED: Final = re.compile(
    r"(?i)((?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|invite|bearer)[\"']?\s*[=: ]\s*[\"']?)[^\s\"'&,}]{6,}"
)
_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*KEY-----.*?-----END [A-Z ]*KEY-----", re.DOTALL)


def write_bundle(path: Path, run_dir: RunDir, client: ApiClient | None, findings: Sequence[Mapping[str, str]]) -> int:
    """Write the archive; its size in bytes. Raises ConfigError if it cannot be written."""
    secrets = secrets_of(run_dir)
    try:
        with tarfile.open(path, "w:gz") as archive:
            for name, text in members(run_dir, client, findings):
                data = scrubbed(text, secrets).encode("utf-8")
                entry = tarfile.TarInfo(f"dilocoxd-bundle/{name}")
                entry.size, entry.mtime = len(data), int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); give --bundle another place") from error
    return path.stat().st_size


def members(
    run_dir: RunDir, client: ApiClient | None, findings: Sequence[Mapping[str, str]]
) -> Iterator[tuple[str, str]]:
    """(name, text) of what goes in."""
    yield "findings.json", json.dumps(list(findings), indent=1)
    yield "versions.json", json.dumps(versions(), indent=1)
    yield "files.txt", "\n".join(listing(run_dir.path))
    for file in (run_dir.run_toml, run_dir.site_toml):
        yield f"{file.stem}.json", json.dumps(configuration(file), indent=1, default=str)
    for file in sorted(run_dir.logs.glob("events.jsonl*")):
        yield f"logs/{file.name}", end_of(file, EVENT_BYTES_MAX)
    for pattern in ("*.log", "stacks.txt", "hangs/*-generation-*/*"):
        for file in sorted(run_dir.logs.glob(pattern)):
            name = f"logs/{file.relative_to(run_dir.logs)}"
            if file.name.startswith(TIMEOUT_PREFIX):
                yield f"{name}.json", record_of(file)
            else:
                yield name, end_of(file, LOG_BYTES_MAX)
    for path in ANSWERS if client is not None else ():
        assert client is not None
        try:
            yield f"api/{path.partition('?')[0]}.json", json.dumps(client.ask_json(f"/v1/{path}"), indent=1)
        except PeerError as error:
            yield f"api/{path.partition('?')[0]}.txt", str(error)
            return


def configuration(file: Path) -> Mapping[str, object]:
    """Its tables, secrets masked."""
    try:
        return masked_table(read_toml(file))
    except ConfigError as error:
        return {"error": str(error)}


def versions() -> dict[str, str]:
    """Of this program, Python, the system and the libraries that matter."""
    found = {"dilocoxd": __version__, "python": sys.version, "platform": platform.platform()}
    for name in (
        "torch",
        "hivemind",
        "aiohttp",
        "msgpack",
        "numpy",
        "pydantic",
        "uvloop",
        "tokenizers",
        "transformers",
    ):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def listing(directory: Path) -> list[str]:
    """Size and name of every file of a run directory."""
    lines = []
    for path in sorted(directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a daemon at work replaces and removes files
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                lines.append(f"{found.st_size:>14}  {path.relative_to(directory)}")
    return lines


def end_of(file: Path, size_max: int) -> str:
    """The last bytes of a text."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - size_max))
        return opened.read().decode("utf-8", "replace")


_BROKEN: Final = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    MemoryError,
    RecursionError,
)
"""What an unpickler raises for bytes that are no pickle, and JSON for lists in lists without end."""


class _PlainData(pickle.Unpickler):
    """Numbers, texts, lists and tables: a pickle that names anything to be called is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def record_of(file: Path) -> str:
    """NCCL's record of collectives as JSON, so that it can be read and scrubbed; its newest entries."""
    try:
        with file.open("rb") as opened:
            record = _PlainData(io.BytesIO(opened.read(RECORD_BYTES_MAX))).load()
        if isinstance(record, dict) and isinstance(record.get("entries"), list):
            record["entries"] = record["entries"][-ENTRIES_SHOWN:]
        return json.dumps(record, indent=1, default=str)
    except (pickle.UnpicklingError, *_BROKEN) as error:
        return json.dumps({"error": f"cannot be read: {error}"})


def secrets_of(run_dir: RunDir) -> list[str]:
    """Texts that must not be anywhere: what the files for tokens hold."""
    try:
        _, site = run_dir.load()
    except ConfigError:
        return []
    found = []
    for file in (run_dir.path / site.api.token_file,):
        try:
            found.append(file.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError):
            continue
    return [text for text in found if len(text) >= SECRET_CHARS_MIN]


def scrubbed(text: str, secrets: Sequence[str]) -> str:
    """`text` without them, and without the values of what is named like one."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _NAMED.sub(lambda found: found[1] + MASK, _KEY.sub(MASK, text))
