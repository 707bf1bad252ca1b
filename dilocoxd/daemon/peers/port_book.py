"""Where nodes of other sites take contributions, as those sites say (protocol S12). Pure.

What a site says counts as long as it is in touch, and its newest word alone.
"""

from collections.abc import Set
from typing import Final

from dilocoxd.config.addresses import ip_version
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION
from dilocoxd.wire.messages import DataPorts, NodePort, SegmentHeader

SITES_MAX: Final = 1024
PORTS_MAX: Final = 1024
"""That are used at a time."""


class PortBook:
    """Of all sites."""

    def __init__(self) -> None:
        self._ports: dict[PeerId, tuple[NodePort, ...]] = {}

    def take(self, peer: PeerId, said: DataPorts) -> None:
        """The newest word of `peer`. Raises WireError(malformed), and what it said before counts no more."""
        self._ports.pop(peer, None)
        if problem := _problem(said.ports):
            raise WireError("malformed", f"ports of nodes: {problem}")
        if said.ports and len(self._ports) < SITES_MAX:
            self._ports[peer] = said.ports

    def keep(self, in_touch: Set[PeerId]) -> None:
        """Forget all others."""
        for peer in self._ports.keys() - in_touch:
            del self._ports[peer]

    def all(self) -> dict[tuple[PeerId, int], NodePort]:
        """By site and place in its list; beyond PORTS_MAX of each site as many as of any other, its first ones. Who
        names dozens takes nobody's."""
        found = [((peer, number), port) for peer, ports in self._ports.items() for number, port in enumerate(ports)]
        return dict(sorted(found, key=lambda item: item[0][1])[:PORTS_MAX])

    def of(self, peer: PeerId) -> tuple[NodePort, ...]:
        """Of one site, in its order."""
        return self._ports.get(peer, ())

    def number(self, peer: PeerId, header: SegmentHeader) -> int | None:
        """Which of the ports of `peer` takes this payload; None: none, it goes to the peer itself."""
        if header.kind != KIND_CONTRIBUTION:
            return None
        ports = enumerate(self._ports.get(peer, ()))
        return next((number for number, port in ports if port.first <= header.segment < port.stop), None)


def _problem(ports: tuple[NodePort, ...]) -> str:
    end = 0
    for port in ports:
        if not end <= port.first < port.stop:
            return f"segments {port.first} to {port.stop} behind {end}"
        end = port.stop
        wrong = next((host for host in port.hosts if ip_version(host) is None), None)
        if wrong is not None:
            return f"{wrong!r} is no IP address"
    return ""
