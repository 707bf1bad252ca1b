"""What the doctor checks before `start`, `join` and `run` write or start anything; what cannot work is refused.

Everything wrong is told at once. What is only doubtful is a warning. Memory and disk are estimates: `--force` starts
anyway.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dilocoxd.cli.doctor.devices import device_finding
from dilocoxd.cli.doctor.findings import Finding
from dilocoxd.cli.doctor.machine import (
    clock_finding,
    compiler_finding,
    disk_finding,
    memory_finding,
    shm_finding,
    threads_finding,
)
from dilocoxd.cli.doctor.site import announce_finding, port_finding
from dilocoxd.cli.shell.telling import tell
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.site_fit import site_problems
from dilocoxd.errors import ConfigError

ESTIMATES: Final = ("memory", "disk")
FORCE: Final = "--force starts anyway"


def check_before_start(manifest: Manifest, site: SiteConfig, directory: Path, *, is_forced: bool) -> None:
    """Warnings go to stderr. Raises ConfigError with all that keeps this site from training here."""
    refused = [f"{problem}." for problem in site_problems(manifest, site)]
    for finding in start_findings(manifest, site, _existing(directory)):
        sentence = f"{finding.text}. {finding.remedy}"
        if finding.level == "error" and not (is_forced and finding.check in ESTIMATES):
            refused.append(sentence.rstrip(".") + (f"; {FORCE}." if finding.check in ESTIMATES else "."))
        elif finding.level in ("warning", "error"):
            tell(f"warning: {finding.check}: {sentence}")
    if refused:
        raise ConfigError(" Also: ".join(refused))


def start_findings(manifest: Manifest, site: SiteConfig, directory: Path) -> Iterator[Finding]:
    """Those of the doctor's checks that cost no time and need no daemon."""
    yield port_finding("port_network", site.network.host, site.network.port, is_running=False)
    if site.network.data_connections and site.network.data_port:
        yield port_finding("port_data", site.network.host, site.network.data_port, is_running=False)
    if site.api.port:
        yield port_finding("port_api", site.api.host, site.api.port, is_running=False)
    yield device_finding(manifest, site)
    yield memory_finding(manifest, site)
    yield disk_finding(directory, manifest)
    yield clock_finding()
    yield shm_finding(site)
    yield threads_finding(site)
    yield compiler_finding(site)
    if site.network.announce:
        yield announce_finding(site, None)


def _existing(directory: Path) -> Path:
    """The folder in which `directory` will be made, or itself."""
    return next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
