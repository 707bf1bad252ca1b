"""Checks of one site for `dilocoxd doctor`: configuration, key, ports, addresses, bootstrap peers, and what a running
daemon says about its clock and about being reached from outside.
"""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dilocoxd.cli.client import ApiClient
from dilocoxd.cli.findings import Finding
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import PeerError

CONNECT_S: Final = 3.0
REACH_S: Final = 40.0


def site_findings(run_dir: Path, site: SiteConfig, client: ApiClient) -> Iterator[Finding]:
    """All checks of this file; the daemon may run or not."""
    try:
        status: dict[str, Any] = client.ask("/v1/status")
    except PeerError:
        status = {}
    yield identity_finding(run_dir / site.paths.identity)
    yield port_finding("port_network", site.network.host, site.network.port, is_running=bool(status))
    if site.api.port:
        yield port_finding("port_api", site.api.host, site.api.port, is_running=bool(status))
    yield announce_finding(site, status)
    if site.network.bootstrap:
        yield bootstrap_finding(site.network.bootstrap)
    if status:
        yield peers_clock_finding(status)
        yield reach_finding(client, status)
    else:
        yield Finding("reach", "info", "no daemon runs here; start it and ask again")


def identity_finding(path: Path) -> Finding:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return Finding("identity", "info", f"{path} does not exist yet; the first start makes it")
    except OSError as error:
        return Finding("identity", "error", f"{path}: {error.strerror}")
    return Finding("identity", "error" if mode & 0o077 else "ok", f"{path} has mode {mode:04o}")


def port_finding(check: str, host: str, port: int, *, is_running: bool) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if is_running:
                return Finding(check, "ok", f"{host} port {port}: the daemon listens")
            return Finding(check, "error", f"{host} port {port} cannot be listened on: {error.strerror}")
    if is_running and check == "port_network":
        return Finding(check, "error", f"the daemon runs, but nobody listens on {host} port {port}")
    return Finding(check, "ok", f"{host} port {port} is free")


def announce_finding(site: SiteConfig, status: dict[str, Any]) -> Finding:
    from dilocoxd.swarm.addresses import can_reach_others

    told = list(site.network.announce) or status.get("addresses", [])
    useful = [address for address in told if can_reach_others(address)]
    if useful:
        return Finding("announce", "ok", f"others are told {', '.join(useful[:3])}")
    if told:
        return Finding("announce", "warning", f"others are told only {', '.join(told[:3])}, which is this machine")
    is_local = site.network.host in ("127.0.0.1", "::1", "localhost")
    text = f"network.host = '{site.network.host}', nothing in network.announce"
    return Finding("announce", "warning" if is_local else "info", text)


def bootstrap_finding(addresses: tuple[str, ...]) -> Finding:
    from dilocoxd.swarm.addresses import parse_address

    failures = []
    for text in addresses:
        address = parse_address(text)
        try:
            socket.create_connection((address.host, address.port), CONNECT_S).close()
        except OSError as error:
            failures.append(f"{address.host}:{address.port} {error.strerror or error}")
        else:
            others = f"; others failed: {'; '.join(failures)}" if failures else ""
            return Finding("bootstrap", "ok", f"{address.host}:{address.port} accepts connections{others}")
    return Finding("bootstrap", "error", "; ".join(failures))


def peers_clock_finding(status: dict[str, Any]) -> Finding:
    skewed = [peer for peer, kinds in status.get("bad_input", {}).items() if "clock_skew" in kinds]
    if skewed:
        return Finding("clock", "error", f"the clock differs from that of {', '.join(skewed[:3])}")
    return Finding("clock", "ok", "no peer complains about the clock")


def reach_finding(client: ApiClient, status: dict[str, Any]) -> Finding:
    if not status["peers"]["live"]:
        return Finding("reach", "info", "no other site is live that could try")
    try:
        found = client.ask("/v1/control/reach", {}, timeout_s=REACH_S)
    except PeerError as error:
        return Finding("reach", "warning", str(error))
    tried = ", ".join(f"{one['address']} {'answers' if one['ok'] else one['error']}" for one in found["addresses"])
    is_reached = any(one["ok"] for one in found["addresses"])
    return Finding("reach", "ok" if is_reached else "error", f"seen from {found['peer']}: {tried or 'no addresses'}")
