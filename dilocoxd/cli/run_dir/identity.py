"""`dilocoxd id` and `dilocoxd identity new`: who a site is, and how it becomes somebody else."""

import json
import shlex
import time
from pathlib import Path
from typing import Final

import click

from dilocoxd.cli.run_dir.admission import found, invite_of, keep_membership, use_invite
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.store.rundir import RunDir, open_run_dir

OWN_STATE: Final = ("promise", "promise.payload", "site", "membership")
"""What belongs to the old identity besides its key: promises, error feedback, kept work, trainers' checkpoints. Under
another name the same work would be given to the run twice."""


def show_id(run_directory: Path, as_json: bool) -> int:
    """Exit code of `dilocoxd id` (cli/declared/identity.py). Raises ConfigError."""
    from dilocoxd.swarm.discovery.identity import load

    kept = run_directory / "identity.key"
    if not as_json and kept.exists() and not (run_directory / "run.toml").exists():
        click.echo(load(kept).peer_id)  # of a site that others have not listed yet (cli/joining/closed.py)
        return 0
    run_dir = open_run_dir(run_directory)
    manifest, site = run_dir.load()
    key = run_dir.identity(site)
    peer_id = load(key).peer_id
    found = {"peer_id": peer_id, "run_id": manifest.run_id, "identity": str(key)}
    click.echo(json.dumps(found, indent=1) if as_json else peer_id)
    return 0


def new(run_directory: Path) -> int:
    """Exit code of `dilocoxd identity new` (cli/declared/identity.py). Raises ConfigError."""
    from dilocoxd.swarm.discovery.identity import create

    run_dir = open_run_dir(run_directory)
    with run_dir.locked():
        site = load_site(run_dir.site_toml)
        aside = set_aside(run_dir, site, time.strftime("%Y%m%dT%H%M%S"))
        made = create(run_dir.path / site.paths.identity)
        is_member = admit_again(run_dir, load_manifest(run_dir.run_toml), made.peer_id)
    click.echo(f"identity   {made.peer_id}")
    if aside is not None:
        click.echo(f"the old one and its work are in {aside}")
    if not is_member:
        click.echo("the run does not know this identity: join again with a new link")
        return 0
    click.echo(f"go on with: dilocoxd run {shlex.quote(str(run_directory))}")
    return 0


def admit_again(run_dir: RunDir, manifest: Manifest, peer: PeerId) -> bool:
    """Make the new identity a member by the keys or the invite that are here; whether it is one, or needs not be."""
    if manifest.admission.mode != "invite":
        return True
    found(run_dir, manifest, peer)
    token = invite_of(run_dir)
    if not run_dir.membership.exists() and token is not None:
        keep_membership(run_dir, use_invite(token, manifest.sha256(), peer))
    return run_dir.membership.exists()


def set_aside(run_dir: RunDir, site: SiteConfig, stamp: str) -> Path | None:
    """Move key and own state into a folder of their own; None: there was nothing. Raises ConfigError.

    The key goes first: without one the site does not start, and this can be done again.
    """
    names = [name for name in (site.paths.identity, *OWN_STATE) if (run_dir.path / name).exists()]
    if not names:
        return None
    aside = run_dir.path / f"old-identity-{stamp}"
    try:
        aside.mkdir(mode=0o700)
        for name in names:
            (run_dir.path / name).rename(aside / Path(name).name)
        run_dir.trainer_checkpoint.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{aside}: the old identity cannot be kept there ({error.strerror}); check disk and owner"
        ) from error
    return aside
