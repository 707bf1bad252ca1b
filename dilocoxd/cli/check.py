"""`dilocoxd check-config`: would the daemon accept these files, and what does every field mean?"""

import json
from pathlib import Path

import click

from dilocoxd.config.fields import Section
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError


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
            lines.append(f"{name} ({default})\n    {field.description}")
        lines.append("")
    return "\n".join(lines)


@click.command("check-config")
@click.argument("path", metavar="[FILE | RUN_DIR]", type=click.Path(path_type=Path), required=False)
@click.option("--explain", is_flag=True, help="Print every field with unit, range, effect and cost.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check_config(path: Path | None, explain: bool, as_json: bool) -> int:
    """Check run.toml, site.toml or a run directory without starting anything.

    Exits 0 if the daemon would accept the files and 78 with one sentence per problem if not.
    """
    if explain:
        click.echo("# run.toml\n\n" + explanation(Manifest) + "# site.toml\n\n" + explanation(SiteConfig))
        return 0
    if path is None:
        raise click.UsageError("give a run.toml, a site.toml or a run directory, or --explain")
    files = [path / "run.toml", path / "site.toml"] if path.is_dir() else [path]
    problems: list[str] = []
    warnings: list[str] = []
    run_id: str | None = None
    for file in files:
        try:
            if file.name == "site.toml":
                load_site(file)
            else:
                manifest = load_manifest(file)
                run_id = manifest.run_id
                warnings += [f"{file}: {text}" for text in manifest.warnings()]
        except ConfigError as error:
            problems.append(str(error))
    report(problems, warnings, run_id, as_json=as_json)
    return ConfigError.exit_code if problems else 0


def report(problems: list[str], warnings: list[str], run_id: str | None, *, as_json: bool) -> None:
    """Print the findings."""
    if as_json:
        found = {"ok": not problems, "run_id": run_id, "problems": problems, "warnings": warnings}
        click.echo(json.dumps(found, indent=1))
        return
    for text in problems:
        click.echo(f"error: {text}", err=True)
    for text in warnings:
        click.echo(f"warning: {text}", err=True)
    if not problems:
        click.echo(f"ok{f'  run {run_id}' if run_id else ''}")
