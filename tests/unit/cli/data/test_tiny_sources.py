"""A store that is tiny beside the others is read all the same, or refused: never silently left out."""

from pathlib import Path

import pytest

from dilocoxd.cli.commands import new_manifest, own_text
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import sources_here
from dilocoxd.errors import ConfigError
from dilocoxd.trainer.data.epochs import pick_pattern
from dilocoxd.trainer.tokens.store import INDEX, ShardInfo, StoreIndex


def written(folder: Path, name: str, num_tokens: int) -> str:
    """The index of a store of so many tokens; nothing else is read before the trainers start."""
    (folder / name).mkdir()
    shard = ShardInfo("train-00000", num_tokens, 1, "0" * 64, "0" * 64)
    (folder / name / INDEX).write_bytes(StoreIndex("uint16", 300, None, "", (shard,)).canonical_bytes())
    return f"{name}={folder / name}"


def run_of(folder: Path) -> tuple[Manifest, SiteConfig]:
    """A new run of a large and a tiny store."""
    given = (written(folder, "large", 10**9), written(folder, "tiny", 5000))
    manifest, corpora = own_text(new_manifest("tiny", {}), {"data": given})
    return manifest, SiteConfig(paths=PathsSection(corpora=corpora))


def test_new_run_reads_a_tiny_store(tmp_path: Path) -> None:
    manifest, site = run_of(tmp_path)
    weights = [source.weight for source in sources_here(manifest, site)]
    assert set(pick_pattern(weights).tolist()) == {0, 1}
    assert weights[0] == 1e9


@pytest.mark.parametrize("is_private", [False, True], ids=["shared", "private"])
def test_weight_by_which_a_store_is_never_read_is_refused(is_private: bool, tmp_path: Path) -> None:
    manifest, site = run_of(tmp_path)
    sources = tuple(
        source.model_copy(update={"weight": weight, "private": is_private})
        for source, weight in zip(manifest.data.sources, (5000.0, 1.0), strict=True)
    )
    changed = manifest.model_copy(update={"data": manifest.data.model_copy(update={"sources": sources})})
    with pytest.raises(ConfigError, match=r"tiny has weight 1 .* give it at least 4\.8933\d*, or remove it"):
        sources_here(changed, site)
