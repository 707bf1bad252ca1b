"""Puts the data plane together from the settings: which addresses it listens on, with which key, for how many."""

from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.listener import DataListener, Serve
from dilocoxd.swarm.direct.plane import DataPlane, Hosts, Keys
from dilocoxd.swarm.direct.sockets import listen_on
from dilocoxd.swarm.interface import SwarmSettings
from dilocoxd.swarm.p2pd.addresses import parse_address


def open_data_plane(settings: SwarmSettings, hosts: Hosts, keys: Keys, serve: Serve) -> DataPlane | None:
    """Listens, on the addresses that p2pd listens on; None: data connections are off. Raises ConfigError."""
    if not settings.data_connections:
        return None
    credentials = Credentials(settings.identity)
    ips = [parse_address(address.rpartition("/tcp/")[0] + "/tcp/1").host for address in settings.listen]
    listener = DataListener(listen_on(ips, settings.data_port), credentials, serve)
    return DataPlane(credentials, listener, hosts, keys, str(settings.run_id), settings.data_connections)
