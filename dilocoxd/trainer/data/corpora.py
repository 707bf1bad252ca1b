"""Where text comes from: Debian documentation packages, the Python standard library, or the user's own files.

Packages are downloaded and unpacked into a temporary folder, never installed. The same name must give the same text
on all sites; what it gave is hashed, and the manifest's hash decides (`data.sha256`).
"""

from __future__ import annotations

import ast
import gzip
import itertools
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.folders import files_below, require_file, require_text
from dilocoxd.trainer.tokens.inputs import LINES_SUFFIXES, TABLE_SUFFIXES
from dilocoxd.trainer.tokens.store import INDEX, TOKENIZER

Progress = Callable[[str], None]

TEXT_PREFIX: Final = "text:"
ENGLISH: Final = "english"
"""The first corpus of _ENGLISH_SOURCES that this machine can get."""

_ENGLISH_SOURCES: Final = ("gcide", "stdlib")
CORPORA: Final = ("gcide", "python-doc", "linux-doc", "stdlib")
_TEXT_SUFFIXES: Final = (".txt", ".md", ".rst")
_TEXT_BYTES_MAX: Final = 2 << 30
"""All of it is in memory, several times, while it is tokenised."""
_APT_TIMEOUT_S: Final = 600
_INSTEAD: Final = "give your own text with --data NAME=PATH, or --set data.corpus=stdlib, which needs no download"
_APT: Final = (
    "apt-get", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15",
)  # fmt: skip
_NO_NETWORK_SIGNS: Final = ("failure resolving", "Could not resolve", "Could not connect", "unreachable")
"""In apt's words. Newer package lists cannot be had there either, and asking for them takes minutes."""

_SOURCE_MARK: Final = re.compile(r"\s*(\[[^\]]{1,60}\]\s*)+")
_PRONUNCIATION: Final = re.compile(r"\s*\\[^\\]{1,80}\\")


def is_user_text(name: str) -> bool:
    """True if ``name`` means files of the user: "text:<path>" or anything with a slash."""
    return name.startswith(TEXT_PREFIX) or "/" in name


def read_corpus(name: str, progress: Progress) -> tuple[str, str]:
    """(text, name of what was read) of "english", one of CORPORA or the user's files; ConfigError names the remedy."""
    if is_user_text(name):
        return _read_user_text(Path(name.removeprefix(TEXT_PREFIX)).expanduser(), progress), name
    if name == ENGLISH:
        for source, following in itertools.pairwise(_ENGLISH_SOURCES):
            try:
                return read_corpus(source, progress)
            except ConfigError as error:
                why = str(error).partition(": ")[0]
                progress(f"{why}; taking corpus {following} instead (--data NAME=PATH gives your own text)")
        return read_corpus(_ENGLISH_SOURCES[-1], progress)
    readers: dict[str, Callable[[], str]] = {
        "stdlib": lambda: "\n".join(_stdlib_docstrings()),
        "gcide": lambda: _from_package("dict-gcide", progress, _gcide_text),
        "python-doc": lambda: _from_package(_newest_package(r"^python3\.[0-9]+-doc$"), progress, _documentation_text),
        "linux-doc": lambda: _from_package(_newest_package(r"^linux-doc-[0-9.]+$"), progress, _documentation_text),
    }
    if name not in readers:
        raise ConfigError(
            f"corpus {name!r} is not on this machine: give its text with --data {name}=PATH, repeat `dilocoxd join"
            f" ADDR`, which fetches it from a peer, or (for a new run) choose one of {ENGLISH}, {', '.join(CORPORA)}"
        )
    return readers[name](), name


def _read_user_text(path: Path, progress: Progress) -> str:
    files = [path]
    if path.is_dir():
        found = files_below(path)
        files = [p for p in found if p.suffix in _TEXT_SUFFIXES]
        left_out = Counter(p.suffix or p.name for p in found if p.suffix not in _TEXT_SUFFIXES)
        for suffix, count in sorted(left_out.items()):
            progress(f"left out: {count} files *{suffix} in {path}; `dilocoxd data pack` reads more kinds")
    elif path.suffix in (*LINES_SUFFIXES, *TABLE_SUFFIXES, ".gz"):
        raise ConfigError(f"{path} is no plain text: pack it with `dilocoxd data pack`, and give the store")
    elif path.name == INDEX and path.with_name(TOKENIZER).exists():
        raise ConfigError(f"{path} is a part of a token store: give the folder, {path.parent}")
    for file in files:
        require_file(file)
    try:
        if sum(file.stat().st_size for file in files) > _TEXT_BYTES_MAX:
            raise ConfigError(
                f"{path} has more than {_TEXT_BYTES_MAX >> 30} GiB of text: pack it with `dilocoxd data pack`"
            )
        text = "\n\n".join(_text_of(file) for file in files)
    except OSError as error:
        where = error.filename or path
        raise ConfigError(f"cannot read text from {where} ({error.strerror}): give a UTF-8 file or folder") from error
    if not text.strip():
        raise ConfigError(f"no text in {path}: give a file or a folder with {', '.join(_TEXT_SUFFIXES)}")
    return text


def _text_of(file: Path) -> str:
    data = file.read_bytes()
    require_text(data, file)
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")  # as a file opened for text gives it
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 near byte {error.start}; convert it to UTF-8") from error


def _stdlib_docstrings() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "test", "tests", "__pycache__", "idlelib", "dist-packages"}
    files: list[Path] = []
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name not in skipped]  # what was installed may be many times as much
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(files):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in statements_below(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) > 80:
                    yield text + "\n"


def statements_below(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that may have a docstring, in the order of ast.walk, which hashes of this corpus rest on; most nodes
    are of expressions, and those have none."""
    todo = deque[ast.AST]([tree])
    while todo:
        node = todo.popleft()
        yield node
        inside = ast.iter_child_nodes(node)
        todo.extend(one for one in inside if isinstance(one, ast.stmt | ast.excepthandler | ast.match_case))


def _newest_package(pattern: str) -> str:
    listed = _run(["apt-cache", "search", "--names-only", pattern], "apt-cache").stdout
    names = [line.split(" ", 1)[0] for line in listed.splitlines()]
    if not names:
        raise ConfigError(f"no Debian package matches {pattern}: run apt-get update as root, or {_INSTEAD}")
    return max(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def _from_package(package: str, progress: Progress, read: Callable[[Path], str]) -> str:
    with tempfile.TemporaryDirectory(prefix="dilocoxd-corpus-") as folder:
        progress(f"downloading Debian package {package}")
        got = _run([*_APT, "download", package], "apt-get", cwd=folder)
        has_network = not any(sign in got.stderr for sign in _NO_NETWORK_SIGNS)
        if got.returncode and has_network and os.geteuid() == 0:
            # A fresh machine has no package lists yet; only root may fetch them.
            _run([*_APT, "update"], "apt-get")
            got = _run([*_APT, "download", package], "apt-get", cwd=folder)
        archives = sorted(Path(folder).glob("*.deb"))
        if got.returncode or not archives:
            if not has_network:
                raise ConfigError(f"cannot download Debian package {package} (no network): {_INSTEAD}")
            reason = (got.stderr.strip().splitlines() or ["no reason given"])[-1].replace(": ", ", ")
            raise ConfigError(
                f"cannot download Debian package {package} ({reason}): run apt-get update as root, or {_INSTEAD}"
            )
        progress(f"unpacking {archives[0].name}")
        unpacked = Path(folder) / "unpacked"
        done = _run(["dpkg-deb", "-x", str(archives[0]), str(unpacked)], "dpkg-deb")
        if done.returncode:
            raise ConfigError(
                f"cannot unpack {archives[0].name} ({done.stderr.strip()}): free disk space, or {_INSTEAD}"
            )
        text = read(unpacked)
    if not text.strip():
        raise ConfigError(f"Debian package {package} holds no text that we can read: {_INSTEAD}")
    return text


def _run(command: list[str], tool: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=_APT_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise ConfigError(f"{tool} is not on this machine, and the corpus is a Debian package: {_INSTEAD}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{' '.join(command)} took longer than {_APT_TIMEOUT_S} s: {_INSTEAD}") from error


def _gcide_text(folder: Path) -> str:
    found = sorted(folder.rglob("gcide.dict.dz"))
    if not found:
        return ""
    with gzip.open(found[0], "rt", encoding="utf-8", errors="replace") as file:
        return "\n".join(_dictionary_paragraphs(file))


def _dictionary_paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Definitions as unwrapped paragraphs, without pronunciation, link braces and lines that only name the source."""
    words: list[str] = []
    for line in lines:
        if not line.strip():
            if words:
                yield _PRONUNCIATION.sub("", " ".join(words)).replace("{", "").replace("}", "")
            words = []
        elif not _SOURCE_MARK.fullmatch(line):
            words.append(line.strip())
    if words:
        yield " ".join(words)


def _documentation_text(folder: Path) -> str:
    pieces: list[str] = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        if path.name.endswith((".rst", ".rst.txt")):
            pieces.append(path.read_text(encoding="utf-8", errors="replace"))
        elif path.name.endswith((".rst.gz", ".rst.txt.gz")):
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
                pieces.append(file.read())
    return "\n\n".join(pieces)


def describe_environment() -> str:
    """What a corpus of this machine depends on, for error messages about unequal hashes."""
    return f"Python {sys.version.split()[0]}"
