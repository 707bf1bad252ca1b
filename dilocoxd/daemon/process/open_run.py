"""What a run directory holds, once it is open."""

from dataclasses import dataclass

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.store.rundir import RunDir
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.telemetry.events import EventLog


@dataclass(frozen=True, slots=True)
class Opened:
    """Files that are read once, and the event log."""

    run_dir: RunDir
    manifest: Manifest
    config: SiteConfig
    identity: Identity
    events: EventLog
