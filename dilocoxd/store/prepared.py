"""Where prepared text lies on this machine, and how it is found again by its hashes.

``<cache>/data/<any name>/`` with tokens.bin, tokenizer.json and index.json; trainer/data/prepare.py makes them, a copy
from another machine or from a peer is as good. Reading index.json is enough to find one: hashes are checked when it is
made or copied.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError

INDEX: Final = "index.json"
TOKENIZER: Final = "tokenizer.json"
TOKENS: Final = "tokens.bin"
FETCHED: Final = "fetched.json"
"""The index as a peer sent it; not believed yet, so it has another name."""
CACHE_VARIABLE: Final = "DILOCOXD_CACHE"


def at_home(path: str) -> Path:
    """`path` with a folder in the place of ~ or ~NAME. Raises ConfigError where none is, as in some containers."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{path}: there is no home folder of that user here; write the whole path, with --cache, --data or in"
            " site.toml (paths.cache, paths.corpora)"
        ) from error


def default_cache_dir() -> Path:
    """$DILOCOXD_CACHE, else $XDG_CACHE_HOME/dilocoxd, else ~/.cache/dilocoxd. Raises ConfigError."""
    if os.environ.get(CACHE_VARIABLE):
        return at_home(os.environ[CACHE_VARIABLE])
    return at_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dilocoxd"


def chosen_cache_dir(chosen: str) -> Path:
    """`paths.cache` of site.toml, or the default. Raises ConfigError."""
    return at_home(chosen) if chosen else default_cache_dir()


def find_prepared(cache_dir: Path, data_sha256: str, tokenizer_sha256: str) -> Path | None:
    """Folder of the text with these hashes (hex), whatever its name; None if it is not here or a hash is not known."""
    if not data_sha256 or not tokenizer_sha256:
        return None
    for path in sorted((cache_dir / "data").glob(f"*/{INDEX}")):
        try:
            tables = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        wanted = {"data_sha256": data_sha256, "tokenizer_sha256": tokenizer_sha256}
        is_wanted = isinstance(tables, dict) and all(tables.get(name) == value for name, value in wanted.items())
        if is_wanted and (path.parent / TOKENS).is_file() and (path.parent / TOKENIZER).is_file():
            return path.parent
    return None
