"""Writes changes into the site.toml of a run directory: what people wrote there stays, comments and all."""

from typing import Final

from dilocoxd.cli.configuration.editing import Sections, with_values
from dilocoxd.config.environment import field_name, under_names_of
from dilocoxd.config.loading import read_toml
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.writing import comment_lines, description
from dilocoxd.store.durable import write_file
from dilocoxd.store.rundir import RunDir

FIELDS: Final = {
    (section, name): field
    for section, info in SiteConfig.model_fields.items()
    for name, field in getattr(info.annotation, "model_fields", {}).items()
}


def keep(run_dir: RunDir, changes: Sections) -> bool:
    """Write `changes`, which are checked already, into site.toml; whether the file changed. Raises ConfigError."""
    changes = under_names_of(read_toml(run_dir.site_toml), changes)
    old = run_dir.site_toml.read_text(encoding="utf-8")
    new = with_values(old, changes, source=str(run_dir.site_toml), comment=_comment)
    if new.rstrip("\n") == old.rstrip("\n"):
        return False
    write_file(run_dir.site_toml, new.encode("utf-8"))
    return True


def _comment(section: str, field: str) -> list[str]:
    return comment_lines(description(FIELDS[section, field_name(section, field)]))
