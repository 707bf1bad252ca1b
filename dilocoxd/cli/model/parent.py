"""`--from RUN_DIR[@ROUND]`: a new run whose first parameters are a state of another one; what it takes over from it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.cli.model.options import cache_of, run_of, tokenizer_of
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError
from dilocoxd.trained.chain import read_chain
from dilocoxd.trained.found import StoredRun
from dilocoxd.trained.tokenizer import TOKENIZER_NAME

DIGITS_MAX = 18
"""Of a round; Python makes no number of thousands."""


@dataclass(frozen=True, slots=True)
class Parent:
    """State `round` of the run at `path`: a run directory or one of its snapshots."""

    path: Path
    run: StoredRun
    round: int

    @property
    def manifest(self) -> Manifest:
        return self.run.manifest

    def tables(self) -> dict[str, object]:
        """run.toml of a run that goes on from here: as the parent's, read in another order, and not begun yet."""
        found = self.manifest.model_dump(mode="json")
        found["run"]["created"] = ""
        found.setdefault("admission", {})["authorities"] = ()  # who decides there need not decide here
        found["seeds"]["data"] += 1
        found["init"] = {"parent": f"{self.manifest.run_id}@{self.round}"}
        return found

    def site(self) -> SiteConfig:
        """What the parent's site.toml says; the defaults if there is none."""
        place = self.run.run_dir
        return load_site(place.site_toml) if place is not None and place.site_toml.is_file() else SiteConfig()

    def corpora(self, manifest: Manifest) -> Mapping[str, str]:
        """Where the texts lie that `manifest` still reads, by name."""
        wanted = {manifest.data.corpus, *(source.name for source in manifest.data.sources)}
        return {name: path for name, path in self.site().paths.corpora.items() if name in wanted}

    def tokenized(self, manifest: Manifest) -> tuple[Manifest, Path | None]:
        """`manifest` with the parent's tokenizer, and the folder of its files if the new run must have them.

        Its parameters mean the parent's tokens: a new text must not get a tokenizer of its own. Raises ConfigError.
        """
        before = self.manifest
        if manifest.data == before.data or manifest.data.sources:
            own = self.run.run_dir.path / "tokenizer" if self.run.run_dir is not None else self.path
            return manifest, own if (own / TOKENIZER_NAME).is_file() else None
        files = tokenizer_of(self.run, None, cache_of(self.run))
        changes = {
            "data": manifest.data.model_copy(update={"sha256": ""}),
            "tokenizer": before.tokenizer.model_copy(update={"kind": "files"}),
        }
        return manifest.model_copy(update=changes), files.folder


def parent_of(text: str) -> Parent:
    """What `--from` names; without @ROUND the newest state that its snapshots and log lead to. Raises ConfigError."""
    before, mark, number = text.rpartition("@")
    path = Path(before if mark and number.isdecimal() else text)
    if mark and not number.isdecimal() and not path.exists() and Path(before, "run.toml").exists():
        raise ConfigError(
            f"--from {text}: {number!r} is no round; write {before}@ROUND with a whole number, or {before} for the"
            " newest"
        )
    run = run_of(path)
    newest = max(_newest(run), *run.rounds(), 0)
    wanted = newest
    if mark and number.isdecimal():
        wanted = int(number) if len(number) <= DIGITS_MAX else sys.maxsize
    if wanted > newest:
        raise ConfigError(f"--from {text}: round {wanted} is not there yet; write at most {path}@{newest}")
    return Parent(path, run, wanted)


def _newest(run: StoredRun) -> int:
    if run.only is not None or run.run_dir is None or not run.run_dir.log.is_dir():
        return 0
    return sum(1 for _ in read_chain(run.run_dir.log, run.manifest))
