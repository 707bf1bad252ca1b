"""Whether this site tells its local network of the run, and what: see swarm/discovery/lan.py."""

import sys
from typing import Literal

from dilocoxd.daemon.process.open_run import Opened
from dilocoxd.swarm.discovery.lan import LocalRun, local_ips
from dilocoxd.swarm.service import Swarm


def tells_lan(setting: Literal["terminal", "always", "never"]) -> bool:
    """Services have no terminal, and stay silent unless they are told to speak."""
    return setting == "always" or (setting == "terminal" and sys.stderr.isatty())


def local_run(opened: Opened, swarm: Swarm) -> LocalRun:
    """This site as it tells of itself; without addresses where it listens on loopback only."""
    config, manifest = opened.config, opened.manifest
    ips, port = local_ips(swarm.addresses()), config.network.port
    return LocalRun(manifest.run_id, manifest.admission.mode, config.site.shown, swarm.peer_id, ips, port)
