"""``python -m dilocoxd.trainer.prepare``: build the token file of a corpus ahead of time, with progress.

Prints one JSON line at the end: what `data.sha256` and `tokenizer.sha256` of a manifest must be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from dilocoxd.config.manifest import load_manifest
from dilocoxd.errors import ConfigError, StoreError, of_the_system
from dilocoxd.store.prepared import default_cache_dir
from dilocoxd.trainer.data.corpora import CORPORA, ENGLISH
from dilocoxd.trainer.data.fetched import accept
from dilocoxd.trainer.data.prepare import DataConfig, TokenizerConfig, prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare and report; exit code 78 for what the operator must change, 74 for a disk that refuses."""
    parser = argparse.ArgumentParser(prog="python -m dilocoxd.trainer.prepare", description="Prepare training data.")
    parser.add_argument("--corpus", default=DataConfig().corpus, help=f"{ENGLISH}, {', '.join(CORPORA)} or text:<path>")
    parser.add_argument("--chars-max", type=int, default=DataConfig().chars_max, help="use at most this much of it")
    parser.add_argument("--validation-fraction", type=float, default=DataConfig().validation_fraction)
    parser.add_argument("--vocab-size", type=int, default=TokenizerConfig().vocab_size)
    parser.add_argument("--data-sha256", default="", help="refuse another corpus")
    parser.add_argument("--tokenizer-sha256", default="", help="refuse another tokenizer")
    parser.add_argument("--cache", type=Path, default=None, help="default: $DILOCOXD_CACHE or ~/.cache/dilocoxd")
    parser.add_argument("--run-toml", type=Path, default=None, help="take all of the above from this manifest")
    parser.add_argument("--path", default="", help="where the text of the corpus lies on this machine")
    parser.add_argument("--tokenizer", default="", help="a given tokenizer.json, or a folder with one")
    parser.add_argument("--accept", type=Path, default=None, help="check and take what was fetched into this folder")
    options = parser.parse_args(arguments)
    try:
        data, tokenizer = _wanted(options)
        cache = options.cache or default_cache_dir()
        if options.accept is not None:
            prepared = accept(options.accept, data, tokenizer)
        else:
            prepared = prepare(data, tokenizer, cache, lambda text: _say(sys.stderr, text))
    except ConfigError as error:
        _say(sys.stderr, f"error: {error}")
        return ConfigError.exit_code
    except (StoreError, OSError) as error:
        _say(sys.stderr, f"error: {of_the_system(error) if isinstance(error, OSError) else error}")
        return 74
    found = {
        "directory": str(prepared.directory),
        "source": prepared.source,
        "data_sha256": prepared.data_sha256,
        "tokenizer_sha256": prepared.tokenizer_sha256,
        "num_train_tokens": prepared.num_train_tokens,
        "num_validation_tokens": prepared.num_validation_tokens,
        "unigram_entropy": prepared.unigram_entropy,
    }
    _say(sys.stdout, json.dumps(found))
    return 0


def _wanted(options: argparse.Namespace) -> tuple[DataConfig, TokenizerConfig]:
    if options.run_toml is not None:
        manifest = load_manifest(options.run_toml)
        paths = {manifest.data.corpus: options.path}
        return DataConfig.from_manifest(manifest, paths), TokenizerConfig.from_manifest(manifest, options.tokenizer)
    return (
        DataConfig(options.corpus, options.chars_max, options.validation_fraction, options.data_sha256, options.path),
        TokenizerConfig(options.vocab_size, options.tokenizer_sha256),
    )


def _say(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
