"""`dilocoxd config`: what holds at a site and where it comes from, and changing its site.toml."""

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from dilocoxd.cli.configuration.keeping import keep
from dilocoxd.cli.overrides import Sections, merged, split_settings
from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.environment import field_name, given_variable
from dilocoxd.config.fields import Section
from dilocoxd.config.loading import read_toml, validated
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import WHY_FIXED, SiteConfig, in_force, load_site, written_site
from dilocoxd.config.site_fit import site_problems
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import RunDir, open_run_dir

DEFAULT: Final = "default"
NEXT_START: Final = "takes effect at the next start of the daemon"
VALUE_CHARS_MAX: Final = 60
"""In a list of everything on a terminal; whoever names a field, or reads by a pipe, gets all of it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One field. `origin`: `run.toml`, `site.toml`, the name of a variable, or `default`."""

    name: str
    value: Any
    origin: str
    hidden: Any = None
    """What site.toml says if a variable wins over it."""


def show_config(run_directory: Path, names: tuple[str, ...], is_changed: bool, as_json: bool) -> int:
    """Exit code of `dilocoxd config show` (cli/declared/config.py). Raises ConfigError."""
    run_dir = open_run_dir(run_directory)
    found = list(_chosen(effective_settings(run_dir), names))
    if is_changed:
        found = [one for one in found if one.value != _default(one.name)]
    if as_json:
        rows = [{"name": one.name, "value": one.value, "origin": one.origin, "hidden": one.hidden} for one in found]
        click.echo(json.dumps(rows, indent=1))
        return 0
    is_cut = not names and sys.stdout.isatty()
    for one in found:
        hidden = f" (site.toml: {_shown(one.hidden, is_cut=is_cut)})" if one.hidden is not None else ""
        click.echo(f"{one.name} = {_shown(one.value, is_cut=is_cut)}    # {one.origin}{hidden}")
    return 0


def set_config(run_directory: Path, assignments: tuple[str, ...]) -> int:
    """Exit code of `dilocoxd config set` (cli/declared/config.py). Raises ConfigError."""
    run_dir = open_run_dir(run_directory)
    fixed, changes = split_settings(assignments)
    for section, fields in fixed.items():
        if section in Manifest.model_fields:
            raise ConfigError(_fixed_sentence(run_directory, section, next(iter(fields))))
    # Together, so that an unknown section is told as one.
    changes = {**changes, **fixed}
    kept = validated(SiteConfig, merged(written_site(run_dir.site_toml), changes), source="config set")
    if problems := site_problems(load_manifest(run_dir.run_toml), in_force(kept)):
        raise ConfigError("; ".join(problems))
    is_changed = keep(run_dir, changes)
    click.echo(f"{run_dir.site_toml}: {NEXT_START if is_changed else 'says so already'}")
    for written in (assignment.partition("=")[0].strip() for assignment in assignments):
        if _present_name(written) != written:
            tell(f"{written} is another name of {_present_name(written)}")
    for line in _hidden_lines(changes):
        tell(line)
    return 0


def _fixed_sentence(run_directory: Path, section: str, field: str) -> str:
    return (
        f"{section}.{field} belongs to run.toml, {WHY_FIXED}; go on from this run's model in a new run with that value:"
        f" dilocoxd start --from {shlex.quote(str(run_directory))} --set {section}.{field}=..."
    )


def _hidden_lines(changes: Sections) -> Iterator[str]:
    for section, fields in changes.items():
        for field in fields:
            if given := given_variable(section, field):
                yield f"warning: {given} is in the environment here, and wins over {section}.{field}"


def effective_settings(run_dir: RunDir) -> Iterator[Setting]:
    """Every field of both files, in their order, as this process would use it. Raises ConfigError."""
    manifest, site = load_manifest(run_dir.run_toml), load_site(run_dir.site_toml)
    file = written_site(run_dir.site_toml)
    written = read_toml(run_dir.run_toml)
    for section, field, value in _values(manifest):
        yield Setting(f"{section}.{field}", value, "run.toml" if field in written.get(section, {}) else DEFAULT)
    for section, field, value in _values(site):
        in_file: Mapping[str, Any] = file.get(section, {})
        name = f"{section}.{field}"
        if given := given_variable(section, field):
            yield Setting(name, value, given, in_file.get(field))
        else:
            yield Setting(name, value, "site.toml" if field in in_file else DEFAULT)


def _values(configuration: Section) -> Iterator[tuple[str, str, Any]]:
    for section, fields in configuration.model_dump(mode="json").items():
        for field, value in fields.items():
            yield section, field, value


def _chosen(found: Iterable[Setting], names: tuple[str, ...]) -> Iterator[Setting]:
    settings_found = list(found)
    names = tuple(map(_present_name, names))
    for name in names:
        if not any(one.name == name or one.name.startswith(f"{name}.") for one in settings_found):
            raise ConfigError(
                f"there is no section and no field {name}; choose one that `dilocoxd config show RUN_DIR` lists"
            )
    for one in settings_found:
        if not names or any(one.name == name or one.name.startswith(f"{name}.") for name in names):
            yield one


def _present_name(name: str) -> str:
    """The name of a field that was written under its other name; any other name as it is."""
    section, dot, field = name.partition(".")
    return f"{section}{dot}{field_name(section, field)}"


def _default(name: str) -> Any:
    """The default of a field as JSON has it; None for one that must be given."""
    section, _, field = name.partition(".")
    for model in (Manifest, SiteConfig):
        info = model.model_fields.get(section)
        fields = getattr(info.annotation, "model_fields", {}) if info is not None else {}
        if field in fields:
            default = None if fields[field].is_required() else fields[field].get_default(call_default_factory=True)
            return list(default) if isinstance(default, tuple) else default
    return None


def _shown(value: Any, *, is_cut: bool) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARS_MAX or not is_cut else f"{text[:VALUE_CHARS_MAX]}..."
