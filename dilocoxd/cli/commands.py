"""Commands that make run directories and start the daemon in the foreground."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dilocoxd.cli.corpus import with_text_hashes
from dilocoxd.cli.overrides import join_address, merged, site_options, site_tables, split_settings
from dilocoxd.config.loading import read_toml, validated
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_names, preset_tables
from dilocoxd.config.site import SiteConfig, address_problem
from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import write_file
from dilocoxd.store.rundir import RunDir, create_run_dir, open_run_dir

DEFAULT_PRESET = "demo"


def run_in_foreground(run_dir: RunDir) -> int:
    """Start the daemon; its exit code."""
    # Only here: the other commands answer at once because they do not load the whole daemon.
    from dilocoxd.api.server import serve_api
    from dilocoxd.daemon.app import run_daemon

    return run_daemon(run_dir.path, serve_api)


def new_manifest(target: str, changes: dict[str, Any]) -> Manifest:
    """The manifest of a preset or a run.toml with `changes` over it, and its creation time filled in."""
    if target in preset_names():
        tables, source = preset_tables(target), f"preset {target}"
    elif Path(target).is_file():
        tables, source = read_toml(Path(target)), target
    else:
        tables, source = preset_tables(target), target  # refuses and lists what there is
    return manifest_from_tables(merged(tables, changes), source=source).created_now()


def make_run(manifest: Manifest, site: SiteConfig, directory: str | None) -> RunDir:
    """A new run directory with an identity."""
    from dilocoxd.swarm.identity import load_or_create

    run_dir = create_run_dir(Path(directory or manifest.run_id), manifest, site)
    load_or_create(run_dir.identity(site))
    return run_dir


def announce_run(run_dir: RunDir) -> None:
    """Tell the operator which run this is, what looks wrong in it, and how others join."""
    from dilocoxd.swarm.identity import load

    manifest, site = run_dir.load()
    for warning in manifest.warnings():
        click.echo(f"warning: {warning}", err=True)
    peer_id = load(run_dir.identity(site)).peer_id
    click.echo(f"run        {manifest.run_id}")
    click.echo(f"directory  {run_dir.path}")
    if site.api.port:
        click.echo(f"status     dilocoxd status http://{site.api.host}:{site.api.port}")
    click.echo("another machine joins with:")
    click.echo(f"  dilocoxd join {join_address(site, peer_id)}")


def created_from(
    target: str,
    directory: str | None,
    settings: tuple[str, ...],
    options: dict[str, Any],
    pin: Callable[[Manifest, SiteConfig], Manifest] = lambda manifest, _site: manifest,
) -> RunDir:
    """The run directory that `start` and `init` make; `pin` may complete the manifest before its hash names the run."""
    manifest_changes, site_changes = split_settings(settings)
    manifest = new_manifest(target, manifest_changes)
    site = validated(SiteConfig, site_tables(options, site_changes), source="options")
    return make_run(pin(manifest, site), site, directory)


@click.command()
@click.argument("target", metavar="[PRESET | run.toml]", default=DEFAULT_PRESET)
@click.option("--no-run", is_flag=True, help="Only write the run directory.")
@site_options
def start(target: str, no_run: bool, directory: str | None, settings: tuple[str, ...], **options: Any) -> int:
    """Create a run and train it here, in the foreground.

    Prints the line with which other machines join. PRESET is demo, small or tiny; any field can be changed with --set.
    """
    run_dir = created_from(target, directory, settings, options, pin=with_text_hashes)
    announce_run(run_dir)
    return 0 if no_run else run_in_foreground(run_dir)


@click.command()
@click.argument("target", metavar="[PRESET | run.toml]", default=DEFAULT_PRESET)
@site_options
def init(target: str, directory: str | None, settings: tuple[str, ...], **options: Any) -> int:
    """Create a run directory without starting it (start it with `dilocoxd run`)."""
    announce_run(created_from(target, directory, settings, options))
    return 0


@click.command()
@click.argument("run_directory", metavar="RUN_DIR", type=click.Path(path_type=Path))
def run(run_directory: Path) -> int:
    """Train an existing run directory, in the foreground. This is what a service runs."""
    run_dir = open_run_dir(run_directory)
    with run_dir.locked():  # refuses at once if another daemon holds it, before a join line is printed
        announce_run(run_dir)
    return run_in_foreground(run_dir)


@click.command()
@click.argument("addresses", metavar="ADDR...", nargs=-1, required=True)
@click.option("--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="Seconds to find the run.")
@click.option("--no-run", is_flag=True, help="Only write the run directory.")
@site_options
def join(
    addresses: tuple[str, ...],
    timeout_s: float,
    no_run: bool,
    directory: str | None,
    settings: tuple[str, ...],
    **options: Any,
) -> int:
    """Fetch a run from a peer, verify it, and train along, in the foreground.

    ADDR is what `dilocoxd start` printed; any peer of the run will do, and several may be given. Repeating the command
    goes on with the same run directory.
    """
    for address in addresses:
        problem = address_problem(address)
        if problem:
            raise ConfigError(f"address {address!r} cannot be used: {problem}")
    manifest_changes, site_changes = split_settings(settings)
    if manifest_changes:
        wrong = next(iter(manifest_changes))
        raise ConfigError(
            f"--set {wrong}... belongs to the run, which is fixed already; only its creator can choose it"
        )
    manifest = fetched_manifest(addresses, timeout_s)
    tables = merged(site_tables(options, site_changes), {"network": {}})
    tables["network"].setdefault("bootstrap", list(addresses))
    run_dir = joined_run_dir(manifest, validated(SiteConfig, tables, source="options"), directory)
    announce_run(run_dir)
    return 0 if no_run else run_in_foreground(run_dir)


def fetched_manifest(addresses: tuple[str, ...], timeout_s: float) -> Manifest:
    """The manifest that one of the peers serves, with its hash verified."""
    from dilocoxd.swarm.bootstrap import fetch_manifest

    return fetch_manifest(addresses, timeout_s=timeout_s, tell=lambda line: click.echo(line, err=True))


def joined_run_dir(manifest: Manifest, site: SiteConfig, directory: str | None) -> RunDir:
    """The run directory for this run: a new one, or the one that an earlier join made, with the new addresses."""
    path = Path(directory or manifest.run_id)
    if not (path / "run.toml").exists():
        return make_run(manifest, site, directory)
    run_dir = open_run_dir(path)
    known, old_site = run_dir.load()
    if known.run_id != manifest.run_id:
        raise ConfigError(
            f"{path}: holds run {known.run_id}, but the peer serves {manifest.run_id}; give --dir another directory"
        )
    bootstrap = tuple(dict.fromkeys((*site.network.bootstrap, *old_site.network.bootstrap)))
    network = old_site.network.model_copy(update={"bootstrap": bootstrap})
    write_file(run_dir.site_toml, old_site.model_copy(update={"network": network}).to_toml().encode("utf-8"))
    return run_dir
