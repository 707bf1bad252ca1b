"""`dilocoxd check-config`: would the daemon accept these files, and what does every field mean?"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dilocoxd.answers.words import wrapped
from dilocoxd.cli.doctor.devices import device_finding
from dilocoxd.cli.doctor.machine import compiler_finding
from dilocoxd.cli.screens.layout import facts, width
from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.fields import Section
from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import Manifest, load_manifest, manifest_from_tables
from dilocoxd.config.presets import preset_names, preset_tables
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.config.site_fit import site_problems, unwatched
from dilocoxd.config.writing import description
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.machine_memory import gpu_memory, machine_memory
from dilocoxd.planner.doubts import manifest_doubts, site_doubts
from dilocoxd.store.rundir import RunDir

if TYPE_CHECKING:
    from dilocoxd.cli.configuration.figures import Figures


def explanation(model: type[Section]) -> str:
    """Every field of a configuration file with its default and description."""
    lines = []
    for section, info in model.model_fields.items():
        kind = info.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        lines.append(f"[{section}]")
        for name, field in kind.model_fields.items():
            default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)!r}"
            lines.append(f"{name} ({default})\n    {description(field)}")
        lines.append("")
    return "\n".join(lines)


def check_config(path: Path | None, explain: bool, as_json: bool) -> int:
    """Exit code of `dilocoxd check-config` (cli/declared/checking.py). Raises ConfigError."""
    if explain:
        columns = width(is_wide=False)
        text = "# run.toml\n\n" + explanation(Manifest) + "# site.toml\n\n" + explanation(SiteConfig)
        click.echo("\n".join(part for line in text.split("\n") for part in wrapped(line, columns)))
        return 0
    if path is None:
        raise click.UsageError("give a run.toml, a site.toml or a run directory, or --explain")
    problems: list[str] = []
    warnings: list[str] = []
    manifest: Manifest | None = None
    try:
        manifest = preset_manifest(path)
    except ConfigError as error:
        problems += error.problems
    files = [] if manifest or problems else [path / "run.toml", path / "site.toml"] if path.is_dir() else [path]
    site: SiteConfig | None = None
    for file in files:
        try:
            if file.name == "site.toml":
                site = load_site(file)
                warnings += [f"{file}: {text}" for text in site_doubts(site)]
            else:
                manifest = load_manifest(file)
                warnings += [f"{file}: {text}" for text in manifest.warnings()]
                warnings += [f"{file}: {text}" for text in manifest_doubts(manifest, machine_memory().total)]
        except ConfigError as error:
            problems += error.problems
    if manifest is not None and site is not None:
        problems += [f"{path}: {text}" for text in (*site_problems(manifest, site), *lacking(manifest, site))]
    warnings += [f"{path}: {text}" for text in gaps(manifest, site)]
    if manifest is not None and not problems:
        problems += [f"{path}: {text}" for text in impossible(manifest, site)]
    if manifest is not None and site is not None and not problems:
        problems += [f"{path}: {text}" for text in unreadable(manifest, site)]
        problems += of_another_run(path, manifest)
    # Only here, as there.
    from dilocoxd.cli.configuration.figures import figures

    weight = figures(manifest, site) if manifest is not None and not problems else None
    report(Checked(problems, warnings, manifest, weight), as_json=as_json)
    return ConfigError.exit_code if problems else 0


def gaps(manifest: Manifest | None, site: SiteConfig | None) -> list[str]:
    """What an operator must not take for watched."""
    text = unwatched(manifest, site or SiteConfig()) if manifest is not None else ""
    return [text] if text else []


def impossible(manifest: Manifest, site: SiteConfig | None) -> list[str]:
    """What of these files no site, or not this one, can carry out; `site` None: one whose site.toml says nothing."""
    # Only here: the plan of the tensors loads torch, which takes seconds.
    from dilocoxd.planner.footprint import footprint
    from dilocoxd.planner.refusals import Machine, refusals

    shape = shape_of(manifest, site)
    machine = Machine(machine_memory().total, gpu_memory() if shape.on_gpu else 0) if site else Machine()
    try:
        return list(refusals(manifest, footprint(manifest, shape), machine))
    except ConfigError as error:
        return list(error.problems)


def lacking(manifest: Manifest, site: SiteConfig) -> list[str]:
    """What this machine lacks: a GPU, or what the site wants compiled with."""
    found = (device_finding(manifest, site), compiler_finding(site))
    return [f"{one.text}; {one.remedy}" for one in found if one.level == "error"]


def unreadable(manifest: Manifest, site: SiteConfig) -> list[str]:
    """What this site was told to read and cannot: the run's token stores, or its text."""
    from dilocoxd.cli.corpus import require_there  # only here: it knows how stores are made

    try:
        require_there(manifest, site)
    except ConfigError as error:
        return list(error.problems)
    return []


def of_another_run(path: Path, manifest: Manifest) -> list[str]:
    """Whether the run directory at `path` was made for a run that `manifest` does not describe."""
    from dilocoxd.cli.run_dir.admission import require_same_run  # only here: it knows keys and certificates

    try:
        require_same_run(RunDir(path), manifest)
    except ConfigError as error:
        return list(error.problems)
    return []


def preset_manifest(path: Path) -> Manifest | None:
    """The run of a preset, or None if `path` is there or looks like a path. Raises ConfigError for an unknown one."""
    name = str(path)
    looks_like_path = "/" in name or bool(path.suffix)
    if path.exists() or (looks_like_path and name.partition(":")[0] not in preset_names()):
        return None
    return manifest_from_tables(preset_tables(name), source=f"preset {name}")


@dataclass(frozen=True)
class Checked:
    """What was found; `weight` None: no run, or one that cannot work."""

    problems: list[str]
    warnings: list[str]
    manifest: Manifest | None
    weight: "Figures | None"


def report(found: Checked, *, as_json: bool) -> None:
    """Print the findings."""
    run_id = found.manifest.run_id if found.manifest is not None else None
    if as_json:
        weight = dataclasses.asdict(found.weight) if found.weight is not None else None
        told = {"ok": not found.problems, "run_id": run_id, "problems": found.problems, "warnings": found.warnings}
        click.echo(json.dumps({**told, "figures": weight}, indent=1))
        return
    for text in found.problems:
        tell(f"error: {text}")
    for text in found.warnings:
        tell(f"warning: {text}")
    if not found.problems:
        click.echo(f"ok{f'  run {run_id}' if run_id else ''}")
    if found.weight is not None:
        from dilocoxd.cli.configuration.figures import rows

        click.echo(facts(rows(found.weight), width(is_wide=False)))
