"""Two run directories of one run that know each other from the start, so that both begin at genesis."""

import contextlib
import io
from pathlib import Path

from click.testing import CliRunner

from dilocoxd.cli.main import cli
from tests.harness.running.run_directories import common_options, free_port, printed_address, share_authority
from tests.harness.running.sites import SiteProcess


def _invoke(arguments: list[str]) -> str:
    with contextlib.redirect_stderr(io.StringIO()):
        result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    if result.exception is not None:
        raise AssertionError(f"dilocoxd {' '.join(arguments)}: {result.exception}\n{result.output}")
    return result.output


def make_pair(
    folder: Path, target: str, manifest_options: list[str], site_options: list[str]
) -> tuple[SiteProcess, SiteProcess]:
    """Sites a and b of a new run of `target` (a preset or a run.toml); b has a as its bootstrap peer."""
    ports = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    out = _invoke(["init", target, *common_options(folder / "a", ports[0]), *manifest_options, *site_options])
    address = printed_address(out)
    bootstrap = ["--set", f'network.bootstrap=["{address}"]']
    copy = str(folder / "a" / "run.toml")
    _invoke(["init", copy, *common_options(folder / "b", ports[1]), *site_options, *bootstrap])
    share_authority(folder / "a", folder / "b")
    return SiteProcess("a", folder / "a", ports[0]), SiteProcess("b", folder / "b", ports[1])
