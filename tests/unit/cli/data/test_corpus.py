"""A run that `start` creates names its text by hashes, so that no site can train on another one."""

from pathlib import Path

import pytest

from dilocoxd.cli.corpus import with_text_hashes
from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError


def test_start_fixes_the_hashes_of_the_text(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"Number {i} is the sum of {i - 1} and one, says {i}.\n" for i in range(3000)))
    tables = preset_tables("tiny")
    tables["data"]["corpus"] = str(corpus)
    tables["model"]["vocab_size"] = 300
    manifest = manifest_from_tables(tables, source="test")
    site = SiteConfig(paths=PathsSection(cache=str(tmp_path / "cache")))
    pinned = with_text_hashes(manifest, site)
    assert len(pinned.data.sha256) == len(pinned.tokenizer.sha256) == 64
    assert pinned.run_id != manifest.run_id
    assert with_text_hashes(pinned, site) is pinned
    corpus.write_text("another text\n" * 5000)
    changed = pinned.model_copy(update={"tokenizer": manifest.tokenizer})
    with pytest.raises(ConfigError, match=r"data\.sha256 of the run is|the corpus gives only"):
        with_text_hashes(changed, site)


def test_corpus_that_cannot_be_had_stops_the_start(tmp_path: Path) -> None:
    tables = preset_tables("tiny")
    tables["data"]["corpus"] = "no-such-corpus"
    with pytest.raises(ConfigError, match="is not on this machine: give its text"):
        with_text_hashes(manifest_from_tables(tables, source="test"), SiteConfig())
