"""Commands that make run directories and start the daemon in the foreground."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from dilocoxd.cli.cluster.lending import tell_of_nodes
from dilocoxd.cli.configuration.keeping import keep
from dilocoxd.cli.corpus import (
    is_path,
    is_store,
    name_of,
    named_paths,
    require_cut,
    require_documents,
    require_enough,
    require_named,
    require_names,
    require_there,
    sources_at,
    unnamed_text,
    with_own_text_hashes,
    with_text_hashes,
)
from dilocoxd.cli.doctor.before_start import check_before_start
from dilocoxd.cli.model.first_state import made_first_state
from dilocoxd.cli.model.origin import Origin, origin_of
from dilocoxd.cli.model.tokenizer import with_tokenizer_files
from dilocoxd.cli.overrides import (
    Sections,
    merged,
    site_tables,
    split_settings,
    warn_of_address,
)
from dilocoxd.cli.run_dir.admission import found, join_link, require_same_run, with_authority
from dilocoxd.cli.run_dir.foreground import EarlyStop, run_in_foreground
from dilocoxd.cli.shell.telling import say, tell
from dilocoxd.config.footprint.counts import model_parameters
from dilocoxd.config.loading import read_toml, validated
from dilocoxd.config.manifest import Manifest, load_manifest, manifest_from_tables
from dilocoxd.config.presets import preset_names, preset_tables
from dilocoxd.config.sections.data import DataSection
from dilocoxd.config.site import SiteConfig, in_force, written_site
from dilocoxd.config.site_fit import site_problems
from dilocoxd.errors import ConfigError
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.store.admission import write_secret
from dilocoxd.store.durable import fsync_directory, hidden_folder
from dilocoxd.store.installed_models import lacks_blocks, require_library, required_model
from dilocoxd.store.rundir import RunDir, check_new_run_dir, create_run_dir, open_run_dir
from dilocoxd.trained.tokenizer import require_packed_with

DEFAULT_PRESET = "demo"


def new_manifest(target: str | None, changes: Sections, origin: Origin = Origin()) -> Manifest:  # noqa: B008 (frozen)
    """The manifest of a preset or a run.toml with the model of `origin` and `changes` over it, created now.

    `target` None: the default preset, or the run that `origin` goes on from. Raises ConfigError.
    """
    if origin.parent is not None and target is not None:
        raise ConfigError(f"{target} and --from {origin.parent.path}: a run begins from one of them; leave one out")
    target = DEFAULT_PRESET if target is None else target
    is_file = target not in preset_names() and Path(target).is_file()
    if is_file:
        tables, source = read_toml(Path(target)), target
    else:
        tables, source = preset_tables(target), f"preset {target}"  # refuses what is none, and lists what there is
    wanted = merged(origin.applied(tables), changes)
    manifest = manifest_from_tables(wanted, source=source)
    has_own_segments = is_file or origin.parent is not None or "segment_elements_max" in changes.get("strategy", {})
    # A preset names the size for its own small model; a larger one would get thousands of segments (ADR 27).
    own = None if has_own_segments else manifest_from_tables(tables, source=source)
    if own is not None and model_parameters(manifest) > model_parameters(own):
        manifest = manifest_from_tables(merged(wanted, {"strategy": {"segment_elements_max": 0}}), source=source)
    return manifest.created_now()


def make_run(
    manifest: Manifest,
    site: SiteConfig,
    directory: str | None,
    authority: SigningKey | None = None,
    complete: Callable[[RunDir], object] = lambda _made: None,
) -> RunDir:
    """The run directory of a new run, with an identity, and what its founder needs to invite others.

    `complete` adds what else the run needs to be whole.
    """
    from dilocoxd.swarm.discovery.identity import load_or_create

    def prepare(made: RunDir) -> None:
        if authority is not None:
            write_secret(made.authority_key, authority.seed.hex())
        found(made, manifest, load_or_create(made.identity(in_force(site))).peer_id)
        complete(made)

    place = Path(directory or manifest.run_id)
    if directory is not None or place.exists():
        return create_run_dir(place, manifest, site, prepare)
    return _made_beside(place, manifest, lambda path: create_run_dir(path, manifest, site, prepare))


def _made_beside(place: Path, manifest: Manifest, make: Callable[[Path], object]) -> RunDir:
    """The run directory `place` that `make` fills under a name by which the next call finds what a killed one left.

    The run's id is no such name: no second call has it, and state 0 has gigabytes. Raises ConfigError.
    """
    try:
        with hidden_folder(place.with_name(manifest.run.name), ".new") as hidden:
            hidden.chmod(0o700)
            make(hidden)
            fsync_directory(hidden)
            hidden.rename(place)
            fsync_directory(place.absolute().parent)
    except OSError as error:
        raise ConfigError(f"{place}: cannot be created ({error.strerror}); give --dir a writable place") from error
    return open_run_dir(place)


def announce_run(run_dir: RunDir) -> None:
    """Tell the operator which run this is, what looks wrong in it, and how nodes and others join."""
    from dilocoxd.swarm.discovery.identity import load

    manifest, site = run_dir.load()
    for warning in (*manifest.warnings(), *unnamed_text(manifest)):
        tell(f"warning: {warning}")
    peer_id = load(run_dir.identity(site)).peer_id
    say(f"run        {manifest.run_id}")
    say(f"directory  {run_dir.path}")
    if site.api.port:
        say("status    ", f"dilocoxd status http://{site.api.host}:{site.api.port}")
    tell_of_nodes(run_dir, site.cluster)
    found(run_dir, manifest, peer_id)
    link = join_link(run_dir, manifest, site, peer_id)
    if manifest.admission.mode == "invite" and link.invite is None:
        say("another machine joins with a link that an authority of the run makes:", "dilocoxd invite RUN_DIR")
        return
    warn_of_address(link.address)
    click.echo("another machine joins with:")
    click.echo(f"  dilocoxd join {link.to_text()}")
    if manifest.admission.mode == "closed":
        say("this run is closed: each site lists the ids of those that it lets in (network.peers_allowed in site.toml)")


Pin = Callable[[Manifest, SiteConfig, str], Manifest]
Look = Callable[[Manifest, SiteConfig], None]


def created_from(
    target: str | None,
    directory: str | None,
    settings: tuple[str, ...],
    options: Mapping[str, object],
    pin: Pin,
    look: Look = lambda _manifest, _site: None,
) -> RunDir:
    """The run directory that `start` and `init` make; `pin` may complete the manifest before its hash names the run.

    `look` refuses what cannot work here, before weights and texts are read, which takes minutes.
    """
    manifest_changes, site_changes = split_settings(settings)
    chosen = dict(options)
    origin = origin_of(chosen)
    manifest, given = own_text(new_manifest(target, manifest_changes, origin), chosen)
    manifest, origin = origin.with_tokenizer_for(manifest)
    corpora = {**origin.corpora(manifest), **given}
    tables = merged(site_tables(chosen, site_changes, corpora), {"paths": origin.site_settings()})
    site = validated(SiteConfig, tables, source="options")
    effective = in_force(site)
    if directory is not None:
        check_new_run_dir(Path(directory), effective)
        origin.require_outside(Path(directory))
    require_named(manifest, effective)
    known = effective.paths.corpora
    stores = {one.name: known[one.name] for one in manifest.data.sources if is_store(known.get(one.name, ""))}
    if origin.tokenizer is not None and stores:
        require_packed_with(origin.tokenizer, stores, manifest.data.num_volumes)
    if stores:
        require_enough(manifest, stores)
    require_documents(manifest, stores)
    shared = {one.name for one in manifest.data.sources if not one.private}
    require_cut(manifest, {name: path for name, path in stores.items() if name in shared})
    look(manifest, effective)
    # Not the run's id, which no second call has: what a killed one left is found by its name, and has gigabytes.
    near = Path(directory or manifest.run.name)
    with made_first_state(manifest, origin.first_state, near) as first:
        named = with_tokenizer_files(first.manifest, origin.tokenizer)
        final, authority = with_authority(pin(named, effective, str(origin.tokenizer or "")))

        def complete(made: RunDir) -> None:
            origin.copy_tokenizer(made)
            first.publish(made, final)

        return make_run(final, site, directory, authority, complete)


def own_text(manifest: Manifest, options: Mapping[str, object]) -> tuple[Manifest, dict[str, str]]:
    """`manifest` with a name in place of a path of this machine, and where the text of that name lies.

    The path comes from `--data` or stands in data.corpus. Raises ConfigError.
    """
    given = options.get("data")
    corpora = named_paths(given if isinstance(given, tuple) else ())
    corpus = manifest.data.corpus
    if is_path(corpus):
        path = corpus.removeprefix("text:")
        corpora.update(named_paths([f"{name_of(path)}={path}"]))
    if manifest.data.has_private:
        # run.toml names the stores of all sites, and those that are given are some of them.
        unknown = sorted(corpora.keys() - {source.name for source in manifest.data.sources})
        if unknown:
            raise ConfigError(
                f"--data {unknown[0]}=...: run.toml names no store {unknown[0]!r} in data.sources;"
                " use a name that is there"
            )
        return manifest, corpora
    stores = {name: path for name, path in corpora.items() if is_store(path)}
    if stores and len(stores) == len(corpora):
        sources = sources_at(stores, manifest.model.vocab_size, manifest.data.sources)
        return manifest.model_copy(update={"data": manifest.data.model_copy(update={"sources": sources})}), stores
    if len(corpora) > 1:
        raise ConfigError(
            f"--data: a run has one text, but {', '.join(corpora)} were given; put them into one folder, or pack each"
        )
    if not corpora:
        return manifest, {}
    # A part of an own text is used only if somebody asks for that.
    whole = manifest.data.chars_max == DataSection.model_fields["chars_max"].default
    changes = {"corpus": next(iter(corpora)), **({"chars_max": 0} if whole else {})}
    return manifest.model_copy(update={"data": manifest.data.model_copy(update=changes)}), corpora


def start(
    target: str | None, no_run: bool, directory: str | None, force: bool, settings: tuple[str, ...], **options: Any
) -> int:
    """Exit code of `dilocoxd start` (cli/declared/starting.py). Raises ConfigError."""

    def look(manifest: Manifest, site: SiteConfig) -> None:
        check(manifest, site, Path(directory or "."), is_started=not no_run, is_forced=force)
        if manifest.data.sources and not no_run:
            require_there(manifest, site)

    with EarlyStop() as early:
        run_dir = created_from(target, directory, settings, options, early.held_after(with_text_hashes), look)
        announce_run(run_dir)
        if no_run:
            return 0
        early.end_with(run_dir)
        return run_in_foreground(run_dir)


def init(target: str | None, directory: str | None, settings: tuple[str, ...], **options: Any) -> int:
    """Exit code of `dilocoxd init` (cli/declared/starting.py). Raises ConfigError."""

    def look(manifest: Manifest, site: SiteConfig) -> None:
        check(manifest, site, Path(directory or "."), is_started=False)

    announce_run(created_from(target, directory, settings, options, with_own_text_hashes, look))
    return 0


def run(run_directory: Path, force: bool, settings: tuple[str, ...], **options: Any) -> int:
    """Exit code of `dilocoxd run` (cli/declared/starting.py). Raises ConfigError."""
    site_changes = only_site_settings(settings)
    run_dir = open_run_dir(run_directory)
    run_dir.require_usable()
    with EarlyStop() as early:
        with run_dir.locked():  # refuses at once if another daemon holds it, before a join line is printed
            manifest = load_manifest(run_dir.run_toml)
            require_same_run(run_dir, manifest)
            given = named_paths(options["data"])
            require_names(manifest, given)
            changes = with_known_texts(site_tables(options, site_changes, given), given, run_dir.site_toml)
            site = in_force(with_changes(run_dir, changes))
            require_there(manifest, site)
            check(manifest, site, run_dir.path, is_started=True, is_forced=force)
            early.hold()
            keep(run_dir, changes)
            announce_run(run_dir)
        early.end_with(run_dir)
        return run_in_foreground(run_dir)


def with_known_texts(tables: Sections, given: Mapping[str, str], site_toml: Path) -> Sections:
    """`tables` with the texts that `site_toml` names beside those of `--data`, which are `given`.

    A run may have many token stores: whoever moved one names that one. Raises ConfigError.
    """
    if not given or not site_toml.exists():
        return tables
    known = validated(SiteConfig, written_site(site_toml), source=str(site_toml)).paths.corpora
    return {**tables, "paths": {**tables.get("paths", {}), "corpora": {**known, **given}}}


def only_site_settings(settings: tuple[str, ...]) -> Sections:
    """Tables of site.toml of all `--set`. Raises ConfigError if one belongs to run.toml."""
    manifest_changes, site_changes = split_settings(settings)
    if manifest_changes:
        wrong = next(iter(manifest_changes))
        raise ConfigError(
            f"--set {wrong}... belongs to the run, which is fixed already; leave it out, or make a run of your own"
        )
    return site_changes


def check(manifest: Manifest, site: SiteConfig, path: Path, *, is_started: bool, is_forced: bool = False) -> None:
    """Before anything is written: can this site train this run, and, if it is to be started, here and now?

    Raises ConfigError.
    """
    require_library(manifest.model.kind)
    if manifest.model.kind == "python":
        _check_own_model(manifest, site)
    if is_started:
        check_before_start(manifest, site, path, is_forced=is_forced)
    elif problems := site_problems(manifest, site):
        raise ConfigError("; ".join(problems))


def _check_own_model(manifest: Manifest, site: SiteConfig) -> None:
    """Raise ConfigError unless the run's model is installed, and can be cut as this site wants it."""
    found, parallel = required_model(manifest.model.entry_point, manifest.model.entry_sha256), site.parallel
    needed = ("shard", "replicate", "activation_checkpointing")
    name = next((one for one in needed if getattr(parallel, one) not in (1, "none")), None)
    if name is not None and lacks_blocks(found):
        value = getattr(parallel, name)
        raise ConfigError(
            f"parallel.{name} = {value!r} needs to know the blocks of the model {found.name!r}, but {found.attribute}"
            f" in {found.path} has no blocks(); leave parallel.{name} at its default"
        )


def with_changes(run_dir: RunDir, tables: Sections) -> SiteConfig:
    """The site.toml of a run directory, as the file has it, with `tables` put over it. Raises ConfigError."""
    source = "options" if tables else str(run_dir.site_toml)
    return validated(SiteConfig, merged(written_site(run_dir.site_toml), tables), source=source)
