"""`dilocoxd files`: service units, alert rules and dashboard that come with the package."""

import sys
from pathlib import Path
from typing import Final

import click

import dilocoxd
from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import write_file

FOLDER: Final = Path(dilocoxd.__file__).parent / "shipped"
PLACE_IN_UNITS: Final = "/opt/dilocoxd/bin/"
"""What the units say; replaced by where this installation is."""


def shipped() -> dict[str, Path]:
    """Every file by its name."""
    return {path.name: path for path in sorted(FOLDER.glob("*/*")) if path.is_file()}


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Write all of them there.")
def files(name: str | None, out: Path | None) -> int:
    """List, print or write what comes with dilocoxd: service units, alert rules, a Grafana dashboard.

    docs/operations/systemd.md and monitoring.md say where each of them goes.
    """
    known = shipped()
    if name is not None and name not in known:
        raise ConfigError(f"no file {name} comes with dilocoxd; choose one of {', '.join(known)}")
    chosen = known if name is None else {name: known[name]}
    if out is not None:
        for one, path in chosen.items():
            _write(out / one, path)
        click.echo(f"{len(chosen)} files in {out}")
    elif name is not None:
        click.echo(_text(known[name]), nl=False)
    else:
        click.echo("\n".join(known))
    return 0


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace(PLACE_IN_UNITS, f"{Path(sys.executable).parent}/")


def _write(target: Path, path: Path) -> None:
    text = _text(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, text.encode("utf-8"))
        target.chmod(0o755 if text.startswith("#!") else 0o644)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror}); give --out a writable folder") from error
