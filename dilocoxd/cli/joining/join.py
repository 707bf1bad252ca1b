"""`dilocoxd join`: from a pasted link to a site that trains along. It says what it is about to do, and asks."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from dilocoxd.answers.words import in_bytes, plural
from dilocoxd.cli.commands import (
    announce_run,
    check,
    only_site_settings,
    with_changes,
    with_known_texts,
)
from dilocoxd.cli.configuration.keeping import keep
from dilocoxd.cli.corpus import named_paths
from dilocoxd.cli.joining.closed import not_listed, with_listed
from dilocoxd.cli.joining.nearby import show_local_runs
from dilocoxd.cli.joining.newcomer import Newcomer, Target, newcomer, read_target
from dilocoxd.cli.joining.text import GivenText, given_text
from dilocoxd.cli.model.first_state import joined_first_state
from dilocoxd.cli.model.tokenizer import joined_tokenizer
from dilocoxd.cli.overrides import Sections, site_tables
from dilocoxd.cli.run_dir.admission import first_authorities
from dilocoxd.cli.run_dir.foreground import EarlyStop, run_in_foreground
from dilocoxd.cli.shell.step_announcer import StepAnnouncer
from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.addresses import DEFAULT_PORT, read_address
from dilocoxd.config.footprint.counts import model_parameters
from dilocoxd.config.footprint.estimate import site_estimate
from dilocoxd.config.loading import validated
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig, in_force, load_site
from dilocoxd.config.site_fit import volume_list, volumes_here
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import RunDir, check_new_run_dir, create_run_dir, open_run_dir
from dilocoxd.wire.admission import OBSERVE


def join(addresses: tuple[str, ...], no_run: bool, **options: Any) -> int:
    """Exit code of `dilocoxd join` (cli/declared/joining.py). Raises ConfigError."""
    if not addresses:
        return show_local_runs()
    with EarlyStop() as early:
        run_dir = joined(read_target(addresses), early, no_run=no_run, **options)
        announce_run(run_dir)
        if no_run:
            return 0
        early.end_with(run_dir)
        return run_in_foreground(run_dir)


def joined(
    target: Target,
    early: EarlyStop,
    *,
    timeout_s: float,
    init_from: str | None,
    no_run: bool,
    directory: str | None,
    **options: Any,
) -> RunDir:
    """The run directory of what is joined, before which `early` holds signals. Raises ConfigError."""
    is_forced, is_asked = options.pop("force"), not options.pop("yes")
    given = named_paths(options["data"])
    tables = site_tables(options, only_site_settings(options.pop("settings")), given)
    if directory is not None and not (Path(directory) / "run.toml").exists():
        check_new_run_dir(Path(directory), in_force(validated(SiteConfig, tables, source="options")))
    with newcomer(target, directory) as who:
        addresses = tuple(one for one in target.addresses if not one.endswith(f"/p2p/{who.peer}"))
        tables.setdefault("network", {}).setdefault("bootstrap", list(addresses))
        access = who.access(timeout_s)
        manifest = who.own_manifest() if who.is_led_to_itself else asked_manifest(who, timeout_s, directory)
        tables = with_listed(tables, manifest, who)
        near, own_files = Path(directory or manifest.run_id), Path(init_from) if init_from else None

        def look(site: SiteConfig) -> GivenText:
            text = given_text(manifest, site)
            if who.directory is None:
                show_and_ask(manifest, site, who, is_asked=is_asked)
            return text

        tables = _with_base(with_known_texts(tables, given, near / "site.toml"), manifest, own_files)
        site = checked_site(manifest, tables, near, is_started=not no_run, is_forced=is_forced)
        looked = look(site) if _is_asked_first(manifest, near, own_files) else None

        def bring(site: SiteConfig) -> None:
            (looked or look(site)).bring(access)

        with (
            joined_first_state(manifest, own_files, near, access) as first,
            joined_tokenizer(manifest, near, access) as tokenizer,
        ):

            def complete(run_dir: RunDir) -> None:
                tokenizer.publish(run_dir)
                first.publish(run_dir, manifest)

            return joined_run_dir(manifest, tables, directory, early.held_after(bring), who, complete)


def checked_site(manifest: Manifest, tables: Sections, near: Path, *, is_started: bool, is_forced: bool) -> SiteConfig:
    """The site in the run directory `near`, or of the one to be made there, once nothing keeps it from starting here.

    Asked before weights and texts are read, which takes minutes. Raises ConfigError.
    """
    run_dir, _, site = _site_at(near, manifest, tables)
    with run_dir.locked() if run_dir is not None else nullcontext():
        check(manifest, in_force(site), near, is_started=is_started, is_forced=is_forced)
    return in_force(site)


def _site_at(path: Path, manifest: Manifest, tables: Sections) -> tuple[RunDir | None, Sections, SiteConfig]:
    """The run directory at `path` if there is one, what changes in its site.toml, and what that says then.

    Addresses of an earlier join stay, behind the new ones. Raises ConfigError.
    """
    if not (path / "run.toml").exists():
        return None, tables, validated(SiteConfig, tables, source="options")
    run_dir = open_run_dir(path)
    known = load_manifest(run_dir.run_toml)
    if known.run_id != manifest.run_id:
        raise ConfigError(
            f"{path}: holds run {known.run_id}, but the peer serves {manifest.run_id}; give --dir another directory"
        )
    earlier = with_changes(run_dir, {}).network.bootstrap
    new = with_changes(run_dir, tables).network.bootstrap
    network = {**tables.get("network", {}), "bootstrap": list(dict.fromkeys((*new, *earlier)))}
    changes = {**tables, "network": network}
    return run_dir, changes, with_changes(run_dir, changes)


def _is_asked_first(manifest: Manifest, near: Path, own_files: Path | None) -> bool:
    """Whether the question comes before weights are read: where they are fetched, which is large; what the operator
    gave is looked at before anybody is asked."""
    return not (near / "run.toml").exists() and own_files is None and not manifest.lora.rank


def _with_base(tables: Sections, manifest: Manifest, own_files: Path | None) -> Sections:
    """With the place of the model under the run's adapter, if there is one."""
    if manifest.lora.rank and own_files is not None:
        tables.setdefault("paths", {})["base"] = str(own_files.absolute())
    return tables


def asked_at(target: Target) -> str:
    """Where, without the parts that only machines read."""
    places = [read_address(address) for address in target.addresses]
    return ", ".join(f"{one.host} port {one.port or DEFAULT_PORT}" for one in places)


def asked_manifest(who: Newcomer, timeout_s: float, directory: str | None) -> Manifest:
    """That of a peer, while the operator is told whom we ask. Raises ConfigError."""
    with StepAnnouncer(lambda text: click.echo(text, err=True), f"asking {asked_at(who.target)} for the run"):
        return fetched_manifest(who, timeout_s, directory)


def fetched_manifest(who: Newcomer, timeout_s: float, directory: str | None = None) -> Manifest:
    """The manifest that one of the peers serves, compared with the link. Raises ConfigError."""
    from dilocoxd.swarm.discovery.bootstrap import NotListed, fetch_authorities, fetch_manifest

    try:
        manifest = fetch_manifest(who.access(timeout_s))
    except NotListed as error:
        raise not_listed(error, who, directory) from error
    needs_others = who.needs_authorities(manifest)
    who.check(manifest, fetch_authorities(who.access(timeout_s), manifest.run_id) if needs_others else ())
    return manifest


def joined_run_dir(
    manifest: Manifest,
    tables: Sections,
    directory: str | None,
    check_site: Callable[[SiteConfig], None],
    who: Newcomer,
    complete: Callable[[RunDir], object] = lambda _made: None,
) -> RunDir:
    """The run directory for this run: a new one, or the one that an earlier join made, changed by `tables`.

    `check_site` is asked before anything is written; `complete` adds what else the run needs to be whole.
    """

    def prepare(made: RunDir) -> None:
        who.move_into(made, manifest, in_force(load_site(made.site_toml)))
        complete(made)

    path = Path(directory or manifest.run_id)
    run_dir, changes, site = _site_at(path, manifest, tables)
    if run_dir is None:
        check_site(in_force(site))
        return create_run_dir(path, manifest, site, prepare)
    with run_dir.locked():
        check_site(in_force(site))
        keep(run_dir, changes)
        prepare(run_dir)
    return run_dir


def show_and_ask(manifest: Manifest, site: SiteConfig, who: Newcomer, *, is_asked: bool) -> None:
    """Tell what joining means here, and ask where somebody can answer. Raises Abort."""
    for name, text in what_joining_means(manifest, site, who):
        tell(f"{name:<11}{text}", 11)
    if is_asked and sys.stdin.isatty() and sys.stderr.isatty():
        try:
            is_wanted = click.confirm("join this run?", default=True, err=True)
        except click.Abort:
            tell("")  # what was typed to end it stands on the line of the question
            is_wanted = False
        if not is_wanted:
            tell("not joined; nothing was written here")
            raise click.Abort


def _texts(manifest: Manifest, site: SiteConfig) -> str:
    shared = ", ".join(source.name for source in manifest.data.sources if not source.private)
    private = [source.name for source in manifest.data.sources if source.private]
    if shared and manifest.data.num_volumes > 1:
        shared += f" ({volume_list(volumes_here(manifest, site), manifest.data.num_volumes)})"
    if not private:
        return shared or manifest.data.corpus
    here = ", ".join(name for name in private if name in site.paths.corpora) or "none of them"
    both = f"{shared}; and {{}}" if shared else "{}"
    return both.format(f"private, each site reads its own ({', '.join(private)}); this one has {here}")


def what_joining_means(manifest: Manifest, site: SiteConfig, who: Newcomer) -> list[tuple[str, str]]:
    """What an operator should know before this machine works for somebody's run."""
    model, strategy, admission = manifest.model, manifest.strategy, manifest.admission
    weight = site_estimate(manifest, site)
    transformed = "" if strategy.transform == "identity" else f", {strategy.transform}"
    rows = [
        ("joining", manifest.run_id),
        ("model", f"{model.kind}, {model_parameters(manifest) / 1e6:,.1f} M parameters, {model.num_layers} layers"),
        ("text", _texts(manifest, site)),
        ("needs", f"about {in_bytes(weight.node_bytes)} of memory and {in_bytes(weight.disk_bytes)} of disk"),
        ("exchange", f"{strategy.codec}{transformed}, every {strategy.inner_steps} steps"),
    ]
    if admission.mode == "invite":
        now = who.way[-1].authorities if who.way else first_authorities(manifest)
        keys = ", ".join(key.hex()[:16] for key in now.keys)
        deciding = f"{now.threshold} of these authorities decide" if len(now.keys) > 1 else "this authority decides"
        rows.append(("admission", f"by invite; {deciding}: {keys}"))
    elif admission.mode == "open":
        rounds = admission.probation_rounds
        fresh = f", on probation for {plural(rounds, 'round')} at first" if rounds else ""
        rows.append(("admission", f"open: whoever finds the run takes part{fresh}"))
    else:
        rows.append(("admission", "closed: each site lists whom it lets in (network.peers_allowed)"))
    if who.proof is not None and who.proof.certificate.terms.role == OBSERVE:
        rows.append(("role", "this invite lets the site follow the run, not contribute: it trains nothing"))
    if who.target.link is None:
        rows.append(("trust", f"no link was given, so whoever answers at {', '.join(who.target.addresses)} says what"))
        rows.append(("", "this run is; a link names it by its hash"))
    return rows
