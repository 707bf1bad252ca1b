"""What commands about the trained model have in common: which run, and which tokenizer.

What reads a run is imported by whoever reads it: help answers without it.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dilocoxd.errors import ConfigError

if TYPE_CHECKING:
    from dilocoxd.trained.found import StoredRun
    from dilocoxd.trained.tokenizer import TokenizerFiles

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

tokenizer_option: Decorator = click.option(
    "--tokenizer",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory with tokenizer.json; default: the run's own.",
)
round_option: Decorator = click.option(
    "--round", "number", type=click.IntRange(min=0), help="Default: that of the newest snapshot."
)
cache_option: Decorator = click.option(
    "--cache",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the trained tokenizer is; default: paths.cache of site.toml, else ~/.cache/dilocoxd.",
)


LOAD_IT: Final = "load RUN_DIR/snapshots/ROUND/anchor.safetensors into it in your own code (docs/tutorials/own-loop.md)"
"""The advice for a module that dilocoxd cannot build."""


_URL: Final = re.compile(r"[a-z]+:/")
"""A path makes one stroke of the two."""


def run_of(path: Path) -> "StoredRun":
    """The run that the user named. Raises ConfigError."""
    if _URL.match(str(path)):
        raise ConfigError(f"{path}: give the run directory on the daemon's machine; weights do not go over its API")
    from dilocoxd.trained.found import find_run

    return find_run(path)


def built_run_of(path: Path, instead: str) -> "StoredRun":
    """The same for a command that needs more of the model than its parameters. Raises ConfigError.

    `instead`: what to do where the model is somebody's own module, which only its training loop can build.
    """
    run = run_of(path)
    if run.manifest.model.kind == "external":
        raise ConfigError(
            f"{path}: model.kind = 'external', a module that only the training loop of this run can build; {instead}"
        )
    return run


def tell_of_newer(run: "StoredRun", number: int, tell: Callable[[str], None]) -> None:
    """That the log goes on behind round `number`, the newest snapshot, which was taken because none was named."""
    from dilocoxd.trained.found import newest_in_log

    if (newest := newest_in_log(run)) > number:
        tell(f"round {number} is the newest snapshot; the log goes on to round {newest}, which --round {newest} takes")


def tokenizer_of(run: "StoredRun", given: Path | None, cache: Path | None) -> "TokenizerFiles":
    """Files of the run's tokenizer. Raises ConfigError with what to do if they are not on this machine, or
    the run never began here."""
    from dilocoxd.trained.tokenizer import TokenizerFiles, find_tokenizer

    if run.run_dir is not None and not run.rounds() and not run.run_dir.events.is_file():
        raise ConfigError(
            f"{run.run_dir.path}: this run was never started here, so no model is in it yet; begin with"
            f" `dilocoxd run {shlex.quote(str(run.run_dir.path))}`"
        )
    if given is not None:
        found = TokenizerFiles(given)
        if not found.path.is_file():
            raise ConfigError(f"{given}: has no tokenizer.json; give --tokenizer a directory with one")
        return found
    sha256 = run.manifest.tokenizer.sha256
    where = cache or cache_of(run)
    own = run.run_dir.path / "tokenizer" if run.run_dir is not None else run.snapshots
    found_here = find_tokenizer(own, where, sha256)
    if found_here is None:
        named = f" (sha256 {sha256[:16]})" if sha256 else ""
        raise ConfigError(
            f"the tokenizer of {run.manifest.run_id}{named} is neither in {own} nor in"
            f" {where}; give --tokenizer DIR, or --cache with the directory that the site used"
        )
    return found_here


def cache_of(run: "StoredRun") -> Path:
    """The directory of prepared corpora that the site uses."""
    from dilocoxd.config.site import load_site
    from dilocoxd.store.prepared import chosen_cache_dir, default_cache_dir

    if run.run_dir is not None and run.run_dir.site_toml.is_file():
        return chosen_cache_dir(load_site(run.run_dir.site_toml).paths.cache)
    return default_cache_dir()
