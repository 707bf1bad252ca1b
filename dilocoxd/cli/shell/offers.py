"""What the shell offers behind commands: presets with strategies, fields for --set, run directories."""

from pathlib import Path
from typing import Final

from click import Context, Parameter
from click.shell_completion import CompletionItem

RUN_TOML: Final = "run.toml"


def presets(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    """MODEL, MODEL:STRATEGY, or a file."""
    from dilocoxd.config.presets import preset_names, strategy_names

    model, colon, _ = incomplete.partition(":")
    names = [f"{model}:{name}" for name in strategy_names()] if colon else preset_names()
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def settings(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    """SECTION.FIELD= of run.toml and site.toml, with what the field does."""
    from dilocoxd.config.manifest import Manifest
    from dilocoxd.config.site import SiteConfig

    found = []
    for model in (Manifest, SiteConfig):
        for section, info in model.model_fields.items():
            fields = getattr(info.annotation, "model_fields", {})
            for name, field in fields.items():
                text = f"{section}.{name}="
                if text.startswith(incomplete):
                    found.append(CompletionItem(text, help=(field.description or "").partition(" Unit: ")[0]))
    return found


def run_directories(context: Context, parameter: Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders that hold a run; if there is none that begins so, folders to look into."""
    base, _, start = incomplete.rpartition("/")
    parent = Path(base or ("/" if incomplete.startswith("/") else "."))
    try:
        folders = sorted(path for path in parent.iterdir() if path.name.startswith(start) and path.is_dir())
    except OSError:
        return []
    prefix = f"{base}/" if "/" in incomplete else ""
    runs = [CompletionItem(prefix + path.name) for path in folders if (path / RUN_TOML).is_file()]
    return runs or [CompletionItem(incomplete, type="dir")]
