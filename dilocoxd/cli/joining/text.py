"""The text of a fetched run: what the operator gave of it is looked at first, the rest is made here or fetched."""

import fcntl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dilocoxd.cli.corpus import NAMES, have_stores, is_path, prepare_text, require_names, say_text
from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError
from dilocoxd.store.prepared import chosen_cache_dir, find_prepared

if TYPE_CHECKING:
    from dilocoxd.swarm.discovery.bootstrap import Access


@dataclass(frozen=True, slots=True)
class GivenText:
    """The text of a fetched run, or its stores: what this site was given of it has been looked at."""

    manifest: Manifest
    site: SiteConfig

    def bring(self, access: "Access") -> None:
        """See that all of it is here: in the cache, made here, or from a peer. Raises ConfigError."""
        manifest, site = self.manifest, self.site
        corpus, is_given = manifest.data.corpus, manifest.data.corpus in site.paths.corpora
        if manifest.model.kind == "external" or manifest.data.sources or _is_prepared(manifest, site):
            return
        if _is_made_here(manifest, site):
            if is_given or not _is_pinned(manifest):
                return  # it was made; or nothing says what it must be: the trainers make what this machine gives
            _, problem = prepare_text(manifest, site)
            if not problem:
                return
            if not site.paths.corpus_bytes_max:
                raise ConfigError(problem)
            tell(f"text: cannot be made here ({problem}); asking a peer for it")
        elif corpus in NAMES and not is_given and not _is_pinned(manifest):
            return
        _require_peers(manifest, site)
        _fetch(manifest, site, chosen_cache_dir(site.paths.cache), access)


def given_text(manifest: Manifest, site: SiteConfig) -> GivenText:
    """Refuse stores and texts that the operator gave and that are not the run's, and a text that nobody can bring.

    A text is prepared for that, but nothing is fetched: somebody may be asked first. Raises ConfigError.
    """
    _require_given(manifest, site)
    return GivenText(manifest, site)


def _require_given(manifest: Manifest, site: SiteConfig) -> None:
    corpus, path = manifest.data.corpus, site.paths.corpora.get(manifest.data.corpus)
    if manifest.model.kind == "external":
        return  # what its loop reads is its own affair
    if not manifest.data.sources and is_path(corpus):
        raise ConfigError(
            f"the run names its text by a path of its founder, {corpus!r}, and a path from somebody else is never read:"
            " make the run anew with --data NAME=PATH"
        )
    require_names(manifest, site.paths.corpora)
    if manifest.data.sources:
        have_stores(manifest, site)
    elif _is_prepared(manifest, site):
        return
    elif _is_made_here(manifest, site) and path is not None:
        _, problem = prepare_text(manifest, site)
        if problem:
            raise ConfigError(problem)
    elif path is not None or corpus not in NAMES:
        _require_peers(manifest, site)


def _is_pinned(manifest: Manifest) -> bool:
    return bool(manifest.data.sha256 and manifest.tokenizer.sha256)


def _is_prepared(manifest: Manifest, site: SiteConfig) -> bool:
    cache = chosen_cache_dir(site.paths.cache)
    return find_prepared(cache, manifest.data.sha256, manifest.tokenizer.sha256) is not None


def _is_made_here(manifest: Manifest, site: SiteConfig) -> bool:
    """Whether this machine can make the run's text and tokenizer of what it has."""
    corpus = manifest.data.corpus
    return manifest.tokenizer.kind != "files" and (corpus in site.paths.corpora or corpus in NAMES)


def _require_peers(manifest: Manifest, site: SiteConfig) -> None:
    """Refuse a text that peers cannot send, for nothing says what it is, or that they shall not. Raises ConfigError."""
    corpus = manifest.data.corpus
    if not _is_pinned(manifest) or not site.paths.corpus_bytes_max:
        raise ConfigError(f"the run's text {corpus!r} is not on this machine: give it with --data {corpus}=PATH")


def _fetch(manifest: Manifest, site: SiteConfig, cache: Path, access: "Access") -> None:
    from dilocoxd.swarm.discovery.corpus import fetch_corpus

    folder = cache / "data" / f".fetch-{manifest.data.sha256[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another site of this machine may fetch the same text
        if find_prepared(cache, manifest.data.sha256, manifest.tokenizer.sha256) is not None:
            return
        said = replace(access, tell=say_text)
        fetch_corpus(said, manifest, folder, bytes_max=site.paths.corpus_bytes_max)
        _, problem = prepare_text(manifest, site, "--accept", str(folder))
    if problem:
        raise ConfigError(problem)
