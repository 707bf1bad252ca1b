"""The tokenizer of a run as files: the directory that its creator gave, or what was trained on the corpus.

Source of the first: RUN_DIR/tokenizer; of the second: the cache of prepared corpora, found by the manifest's hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dilocoxd.config.origin import TOKENIZER_FILE_BYTES_MAX, TOKENIZER_FILES
from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.store.durable import write_file
from dilocoxd.trained.model_config import SpecialTokens

TOKENIZER_NAME: Final = "tokenizer.json"
CONFIG_NAME: Final = "tokenizer_config.json"
FILE_NAMES: Final = TOKENIZER_FILES


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """`folder` holds at least tokenizer.json."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / TOKENIZER_NAME

    def check(self) -> None:
        """Raise ConfigError for files that `special` cannot read, or that are too large to be sent to a newcomer."""
        for path in (self.folder / name for name in FILE_NAMES):
            if path.is_file() and path.stat().st_size > TOKENIZER_FILE_BYTES_MAX:
                raise ConfigError(
                    f"{path} has more than {TOKENIZER_FILE_BYTES_MAX >> 20} MiB, which is no tokenizer; give another"
                )
        self.special()

    def special(self) -> SpecialTokens:
        """Ids of the special tokens that tokenizer_config.json names. Raises ConfigError for a damaged file."""
        config = self._table(CONFIG_NAME)
        if not config:
            return SpecialTokens()
        added = self._table(TOKENIZER_NAME).get("added_tokens") or []
        try:
            ids: dict[str, int] = {one["content"]: int(one["id"]) for one in added}
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise ConfigError(f"{self.path}: its added tokens are none ({error!r}); give a whole tokenizer") from error
        found = (ids.get(_content(config.get(f"{name}_token"))) for name in ("eos", "bos", "pad"))
        return SpecialTokens(*found)

    def _table(self, name: str) -> dict[str, Any]:
        try:
            table: object = json.loads((self.folder / name).read_text(encoding="utf-8"))
            if not isinstance(table, dict):
                raise ValueError("it is no table")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.folder / name} cannot be read ({reason_of(error)}); give a whole tokenizer"
            ) from error
        return table

    def copy_to(self, folder: Path, seq_len: int) -> list[str]:
        """Copy all files, durably; a trained tokenizer gets the config file that transformers wants. Their names.

        Raises OSError, StoreError.
        """
        names = [name for name in FILE_NAMES if (self.folder / name).is_file()]
        for name in names:
            write_file(folder / name, (self.folder / name).read_bytes())
        if CONFIG_NAME not in names:
            config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": seq_len}
            write_file(folder / CONFIG_NAME, (json.dumps(config, indent=2) + "\n").encode("utf-8"))
            names.append(CONFIG_NAME)
        return names


def require_packed_with(tokenizer: Path, stores: Mapping[str, str], num_volumes: int = 1) -> None:
    """Raise ConfigError if one of these token stores (name to path) was packed with another tokenizer.

    Only what decides on the ids of a text counts. A store that does not say which tokenizer it is from is believed.
    """
    # Only here: commands that answer at once do without.
    from dilocoxd.trainer.tokens.store import open_store
    from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, tokenizer_digest

    given = load_tokenizer(tokenizer)
    for name, path in stores.items():
        known = open_store(Path(path), num_volumes).index.tokenizer_sha256
        if not known or known == tokenizer_digest(given):
            continue
        own = Path(path) / TOKENIZER_NAME
        if own.is_file() and _meaning(load_tokenizer(own).to_str()) == _meaning(given.to_str()):
            continue
        raise ConfigError(
            f"--data {name}={path}: the store was packed with another tokenizer than that of {tokenizer}, so its"
            f" numbers mean other text; pack the text again with --tokenizer {tokenizer}"
        )


def _meaning(serialised: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(serialised)
    return {name: value for name, value in table.items() if name not in ("truncation", "padding", "version")}


def _content(token: object) -> str:
    """Text of a special token, which is a string or a table with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def find_tokenizer(given: Path, cache: Path, sha256: str) -> TokenizerFiles | None:
    """The tokenizer of a run: `given` (RUN_DIR/tokenizer) if it is there, else the trained one with this hash in the
    cache of prepared corpora; None if neither is there."""
    if (given / TOKENIZER_NAME).is_file():
        return TokenizerFiles(given)
    for index in sorted((cache / "data").glob("*/index.json")):
        try:
            matches = bool(sha256) and json.loads(index.read_text(encoding="utf-8")).get("tokenizer_sha256") == sha256
        except (OSError, ValueError, AttributeError):
            continue
        if matches and (index.parent / TOKENIZER_NAME).is_file():
            return TokenizerFiles(index.parent)
    return None
