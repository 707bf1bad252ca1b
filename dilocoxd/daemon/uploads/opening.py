"""Puts the uploads of nodes together, where site.toml asks for them."""

from functools import partial

from dilocoxd.config.sections.network import NetworkSection
from dilocoxd.daemon.site.interface import TrainingSite
from dilocoxd.daemon.site.site import LocalSite
from dilocoxd.daemon.uploads.orders import NodeUploads, SiteUploads
from dilocoxd.daemon.workers.outer_pool import OuterPool
from dilocoxd.swarm.direct.nodes import certify
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.service import Swarm


def open_uploads(site: TrainingSite, network: NetworkSection, swarm: Swarm, identity: Identity) -> NodeUploads | None:
    """To be run once the swarm has started; None: the head sends everything."""
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
