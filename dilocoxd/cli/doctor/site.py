"""Checks of one site for `dilocoxd doctor`: configuration, key, ports, addresses, bootstrap peers, and what a running
daemon says about its clock and about being reached from outside.
"""

import contextlib
import errno
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dilocoxd.answers.peers import Peer, Ping, Reach
from dilocoxd.answers.status import Status
from dilocoxd.cli.client import ApiClient
from dilocoxd.cli.doctor.findings import Finding
from dilocoxd.cli.screens.status import outside
from dilocoxd.config.addresses import leads_here, listen_ip, listened_on, socket_family
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError, PeerError
from dilocoxd.store.rundir import RunDir

CONNECT_S: Final = 3.0
REACH_S: Final = 40.0
CLOCKS_ASKED: Final = 3
CLOCK_OFF_MAX_S: Final = 10.0
"""Beyond a minute records are refused (CLOCK_SKEW_MAX_MS); a clock that nobody sets gets there."""
SKEW_LOOK_S: Final = 8.0
"""Two heartbeats, and some more."""


def site_findings(run_dir: Path, site: SiteConfig, client: ApiClient | None) -> Iterator[Finding]:
    """All checks of this file; the daemon may run or not. Without an API (None) nobody can ask which."""
    status = status_of(client)
    is_running = status is not None if client is not None else None
    yield identity_finding(RunDir(run_dir).identity(site))
    yield port_finding("port_network", site.network.host, site.network.port, is_running=is_running)
    if site.network.data_connections and site.network.data_port:
        yield port_finding("port_data", site.network.host, site.network.data_port, is_running=is_running)
    if site.cluster.has_nodes:
        yield port_finding("port_nodes", site.cluster.host, site.cluster.port, is_running=is_running)
    if site.api.port:
        yield port_finding("port_api", site.api.host, site.api.port, is_running=is_running)
    yield announce_finding(site, status)
    if site.network.bootstrap:
        yield bootstrap_finding(site.network.bootstrap)
    if client is None:
        yield Finding("reach", "info", "api.port = 0: a daemon cannot be asked; give it a port in site.toml")
    elif status is not None:
        peers = client.ask("/v1/peers", list[Peer])
        yield peers_clock_finding(client, status, peers)
        if site.network.nat_port_map and not site.network.announce:
            yield port_map_finding(status.addresses)
        yield reach_finding(client, status)
        yield ways_finding(peers)
        yield data_finding(peers, is_on=site.network.data_connections > 0)
    else:
        yield Finding("reach", "info", "no daemon runs here; start it and ask again")


def status_of(client: ApiClient | None) -> Status | None:
    """What the daemon says; None where none answers, or none can be asked."""
    try:
        return client.ask("/v1/status", Status) if client is not None else None
    except PeerError:
        return None


def identity_finding(path: Path) -> Finding:
    # Only here: reading a key loads the library for keys.
    from dilocoxd.swarm.discovery.identity import load

    try:
        return Finding("identity", "ok", f"peer {load(path).peer_id}")
    except ConfigError as error:
        return Finding("identity", "error", str(error))


def port_finding(check: str, host: str, port: int, *, is_running: bool | None) -> Finding:
    """`is_running`: whether the daemon of this site does; None: it has no API to ask."""
    try:
        ips = listened_on(listen_ip(host), "api" if check == "port_api" else "network")
    except ConfigError:
        return Finding("host", "error", f"the name {host!r} has no address")
    error = next(filter(None, (_bind_error(ip, port) for ip in ips)), None)
    if error is not None:
        if error.errno == errno.EADDRNOTAVAIL:
            return Finding("host", "error", f"{host} is no address of this machine")
        if is_running:
            return Finding(check, "ok", f"{host} port {port}: the daemon listens")
        if is_running is None and error.errno == errno.EADDRINUSE:
            return Finding(check, "info", f"{host} port {port} is in use, by this site's daemon or another program")
        return Finding(check, "error", f"{host} port {port} cannot be listened on: {error.strerror}")
    if is_running and check in ("port_network", "port_data", "port_nodes"):
        return Finding(check, "error", f"the daemon runs, but nobody listens on {host} port {port}")
    return Finding(check, "ok", f"{host} port {port} is free")


def _bind_error(ip: str, port: int) -> OSError | None:
    """Why a socket cannot have this address; of its own family alone, like those of the daemon."""
    family = socket_family(ip)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            return error
    return None


def announce_finding(site: SiteConfig, status: Status | None) -> Finding:
    from dilocoxd.swarm.p2pd.addresses import can_reach_others

    told = list(site.network.announced) or list(status.addresses if status is not None else ())
    useful = [address for address in told if can_reach_others(address)]
    if useful:
        seen = outside(status.public_addresses) if status is not None else ""
        return Finding("announce", "ok", f"others are told {', '.join(useful[:3])}{seen and f'; they see {seen}'}")
    if told:
        return Finding("announce", "warning", f"others are told only {', '.join(told[:3])}, which is this machine")
    is_local = site.network.host in ("127.0.0.1", "::1", "localhost")
    text = f"network.host = '{site.network.host}', nothing in network.announce"
    return Finding("announce", "warning" if is_local else "info", text)


def port_map_finding(addresses: Sequence[str]) -> Finding:
    """What p2pd knows of the outside it has from the router: an interface of a machine behind one is private.

    Whether others get in there is what `reach` finds: p2pd also believes a router that says no by NAT-PMP.
    """
    opened = [address.partition("/p2p/")[0] for address in addresses if leads_here(address)]
    if opened:
        return Finding("port_map", "ok", f"others are told {', '.join(opened[:2])}")
    return Finding("port_map", "warning", "no router opened a port, as if none spoke UPnP or NAT-PMP")


def bootstrap_finding(addresses: tuple[str, ...]) -> Finding:
    from dilocoxd.swarm.p2pd.addresses import parse_address

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


def peers_clock_finding(client: ApiClient, status: Status, peers: Sequence[Peer]) -> Finding:
    """Asked now: what was counted before a clock was set stays counted. Blocks for SKEW_LOOK_S if something was."""
    offsets = {}
    for peer in [peer for peer in peers if peer.is_live][:CLOCKS_ASKED]:
        with contextlib.suppress(PeerError):
            found = client.ask("/v1/control/ping", Ping, {"site": peer.peer_id}, timeout_s=REACH_S)
            offsets[peer.name] = found.clock_offset_s
    told = [f"that of {name} is {offset:+.1f} s from ours" for name, offset in offsets.items()]
    refused = [f"that of {peer} is more than a minute ahead of ours" for peer in refused_clocks(client, status)]
    if not offsets and not refused:
        return Finding("clock", "info", "no other site answers that could be asked for its time")
    is_off = refused or max(map(abs, offsets.values())) > CLOCK_OFF_MAX_S
    return Finding("clock", "error" if is_off else "ok", f"clocks of others: {'; '.join((*refused, *told))}")


def refused_clocks(client: ApiClient, before: Status) -> list[str]:
    """Peers whose records are from the future at this moment; they are refused, so that nobody can ask those peers."""
    if not _num_skewed(before):
        return []
    time.sleep(SKEW_LOOK_S)
    was, now = _num_skewed(before), _num_skewed(client.ask("/v1/status", Status))
    return [peer for peer, number in now.items() if number > was.get(peer, 0)][:CLOCKS_ASKED]


def _num_skewed(status: Status) -> dict[str, int]:
    """Of each peer; what lies in the DHT outlives the clock that it is from."""
    kinds = {peer: counts.get("clock_skew", 0) for peer, counts in status.bad_input.items() if peer != "dht"}
    return {peer: number for peer, number in kinds.items() if number}


def reach_finding(client: ApiClient, status: Status) -> Finding:
    if not status.peers.live:
        return Finding("reach", "info", "no other site is live that could try")
    try:
        found = client.ask("/v1/control/reach", Reach, {}, timeout_s=REACH_S)
    except PeerError as error:
        return Finding("reach", "warning", str(error))
    tried = ", ".join(f"{one.address} {'answers' if one.ok else one.error}" for one in found.addresses)
    is_reached = any(one.ok for one in found.addresses)
    return Finding("reach", "ok" if is_reached else "error", f"seen from {found.peer}: {tried or 'no addresses'}")


def ways_finding(peers: Sequence[Peer]) -> Finding:
    live = [peer for peer in peers if peer.is_live]
    relayed = [peer.name for peer in live if peer.way == "relay"]
    if not relayed:
        return Finding("ways", "ok" if live else "info", "no live site is reached through a relay")
    return Finding("ways", "warning", f"{len(relayed)} of {len(live)} through a relay: {', '.join(relayed[:3])}")


def data_finding(peers: Sequence[Peer], *, is_on: bool) -> Finding:
    live = [peer for peer in peers if peer.is_live]
    if not is_on or not live:
        return Finding("data", "info", "no other site is live" if is_on else "network.data_connections is 0")
    others = [peer for peer in live if not peer.has_data]
    found = f"data connections to {len(live) - len(others)} of {len(live)} live sites"
    if not others:
        return Finding("data", "ok", found)
    return Finding("data", "warning", "; ".join((found, *(f"{one.name}: {one.no_data_reason}" for one in others[:3]))))
