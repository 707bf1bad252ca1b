"""Puts together what nodes and head do for each other's payloads, and the ways to nodes of other sites."""

from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

from dilocoxd.config.sections.network import NetworkSection
from dilocoxd.daemon.peers.arrivals import Arrivals
from dilocoxd.daemon.round.driver import RoundDriver
from dilocoxd.daemon.round.transfers import Transfers
from dilocoxd.daemon.site.interface import TrainingSite
from dilocoxd.daemon.site.site import LocalSite
from dilocoxd.daemon.uploads.inlets import NodeInlets, SiteInlets
from dilocoxd.daemon.uploads.orders import NodeUploads, SiteUploads
from dilocoxd.daemon.uploads.other_ports import OtherPorts, SendingSite
from dilocoxd.daemon.workers.outer_pool import OuterPool
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.nodes import certify
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.service import Swarm


def payload_ways(
    site: TrainingSite,
    arrivals: Arrivals,
    transfers: Transfers,
    network: NetworkSection,
    swarm: Swarm,
    identity: Identity,
) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
    """What is to be run, with its name, once the swarm has started and the round machine exists."""
    others = _open_other_ports(arrivals, network, swarm, identity)
    if others is not None:
        transfers.ways = others
        assert swarm.data is not None, "it has them"
        swarm.data.nodes_of = others.nodes_of
        yield "ways to nodes of other sites", others.run()
    uploads = open_uploads(site, network, swarm, identity)
    if uploads is None:
        return
    transfers.uploads = uploads
    uploads.others = others.routes if others is not None else uploads.others
    yield "uploads of nodes", uploads.run()
    assert arrivals.rounds is not None, "it exists"
    transfers.inlets = inlets = _open_inlets(site, arrivals.rounds, transfers, network, swarm)
    arrivals.on_met = inlets.met
    yield "what comes to nodes", inlets.run()


def _open_other_ports(
    arrivals: Arrivals, network: NetworkSection, swarm: Swarm, identity: Identity
) -> OtherPorts | None:
    """None: data connections are off, and everything goes to the sites themselves."""
    if swarm.data is None or swarm.gate.run_id is None:
        return None
    site = SendingSite(
        credentials=Credentials(identity),
        run_id=swarm.gate.run_id,
        doors=swarm.doors,
        data_port=swarm.gate.data_port,
        key_of=swarm.book.key_of,
        in_touch=lambda: swarm.contacts.in_touch,
        connections=network.data_connections,
        lanes=network.streams_per_peer,
    )
    return OtherPorts(arrivals.ports, site, swarm.bulk_out)


def open_uploads(site: TrainingSite, network: NetworkSection, swarm: Swarm, identity: Identity) -> NodeUploads | None:
    """None: the head sends everything."""
    if network.data != "nodes" or swarm.data is None or not isinstance(site, LocalSite):
        return None
    pool, places = site.outer, site.nodes.parts
    if not places or not isinstance(pool, OuterPool):
        return None
    given = SiteUploads(
        certify=partial(certify, identity),
        run_id=str(swarm.gate.run_id),
        membership=lambda: swarm.doors.own,
        connections=network.data_connections,
        lanes=network.streams_per_peer,
    )
    uploads = NodeUploads(pool.parts[-len(places) :], pool.holder, swarm.data, swarm.bulk_out, given)
    for place, part in zip(places, uploads.parts, strict=True):
        place.sends = part.shown
    first = len(pool.parts) - len(places)
    swarm.data.parts_reaching = lambda peer: tuple(first + index for index in uploads.reaching(peer))
    return uploads


def _open_inlets(
    site: TrainingSite, rounds: RoundDriver, transfers: Transfers, network: NetworkSection, swarm: Swarm
) -> NodeInlets:
    """Where nodes send they receive as well."""
    assert isinstance(site, LocalSite) and isinstance(site.outer, OuterPool) and swarm.data is not None
    pool, places, listener = site.outer, site.nodes.parts, swarm.data.listener

    def admit(peer: PeerId) -> None:
        swarm.guard.admit(peer)
        if not swarm.doors.is_member(peer):
            raise WireError("not_admitted", "data connections are for members")

    given = SiteInlets(
        place=rounds.arrival,
        received=transfers.arrived,
        admit=admit,
        callers=listener.believed,
        in_touch=lambda: swarm.contacts.in_touch,
        tell=swarm.send,
        rejected=swarm.rejections.tell,
        port=network.node_data_port,
    )
    numbers = range(len(pool.parts) - len(places), len(pool.parts))
    inlets = NodeInlets([(pool.parts[number], pool.segments(number)) for number in numbers], given)
    for place, part in zip(places, inlets.parts, strict=True):
        place.receives = part.shown
    return inlets
