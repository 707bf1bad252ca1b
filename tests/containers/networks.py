"""Internal networks, each with one site, joined by a router container: what an internet does to sites.

Sites have no rights over their own network: routes and queues are set from the host inside the containers' name spaces,
as a provider would. Addresses: network N is 10.203.N.0/24 and fd42:203:N::/64, router .2, site .10.
"""

from tests.containers.engine import docker, run
from tests.containers.node import Node, full_name, remove

ROUTER = "router"
ALL4, ALL6 = "10.203.0.0/16", "fd42:203::/32"
PORT = 31337


def address(number: int, family: int = 4, host: str = "10") -> str:
    """IP address of a host in network `number`."""
    return f"10.203.{number}.{host}" if family == 4 else f"fd42:203:{number}::{host}"


def multiaddr(number: int, family: int = 4) -> str:
    """Where the site of network `number` listens."""
    return f"/ip{family}/{address(number, family)}/tcp/{PORT}"


def network(number: int) -> str:
    """Name of network `number`."""
    return full_name(f"net{number}")


def in_network_of(node: Node, *command: str) -> str:
    """Run a program of the host in the name space of the container's network."""
    pid = docker("inspect", "-f", "{{.State.Pid}}", node.id)
    return run("nsenter", "-t", pid, "-n", *command)


class Internet:
    """The router and its networks."""

    def __init__(self, image: str) -> None:
        self._image = image
        self.router = Node(ROUTER)
        self._links: list[int] = []

    def open(self) -> None:
        """Start the router; it forwards both families."""
        docker(
            "run", "--detach", "--name", self.router.id, "--network", "none", "--cap-add", "NET_ADMIN",
            "--sysctl", "net.ipv4.ip_forward=1", "--sysctl", "net.ipv6.conf.all.forwarding=1",
            "--sysctl", "net.ipv6.conf.all.disable_ipv6=0", "--entrypoint", "sleep", self._image, "infinity",
        )  # fmt: skip
        docker("network", "disconnect", "none", self.router.id)

    def add(self, number: int, mbit: int) -> None:
        """A network whose link to the router carries `mbit` Mbit/s towards it (what leaves it: `shape_site`)."""
        docker(
            "network", "create", "--internal", "--ipv6", "--subnet", f"10.203.{number}.0/24",
            "--subnet", f"fd42:203:{number}::/64", network(number),
        )  # fmt: skip
        self._links.append(number)
        docker(
            "network", "connect", "--ip", address(number, 4, "2"), "--ip6", address(number, 6, "2"),
            network(number), self.router.id,
        )  # fmt: skip
        shape(self.router, interface(self.router, address(number, 4, "2")), mbit)

    def plug_in(self, node: Node, number: int, mbit: int, *, has_ip4: bool = True) -> None:
        """Routes through the router, and the queue of the link's other direction; after every start of a container."""
        link = interface(node, address(number, 6))
        if has_ip4:
            in_network_of(node, "ip", "route", "replace", ALL4, "via", address(number, 4, "2"))
        else:
            in_network_of(node, "ip", "-4", "address", "flush", "dev", link)
        in_network_of(node, "ip", "-6", "route", "replace", ALL6, "via", address(number, 6, "2"))
        shape(node, link, mbit)

    def unplug(self, node: Node, number: int) -> None:
        """The cable is gone: the interface vanishes from the container."""
        docker("network", "disconnect", network(number), node.id)

    def plug_back(self, node: Node, number: int, mbit: int) -> None:
        """The same address again."""
        docker("network", "connect", *place_options(number), network(number), node.id)
        self.plug_in(node, number, mbit)

    def only_outgoing(self, number: int) -> None:
        """A firewall: nobody can open a connection into the network."""
        for program, everything in (("iptables", address(number, 4, "0/24")), ("ip6tables", f"fd42:203:{number}::/64")):
            for rule in (["-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"], ["-j", "DROP"]):
                in_network_of(self.router, program, "-A", "FORWARD", "-d", everything, *rule)

    def masquerade(self, number: int) -> None:
        """A NAT: whoever is in the network shows the router's address, and nobody gets in."""
        self.only_outgoing(number)
        in_network_of(
            self.router, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", address(number, 4, "0/24"),
            "!", "-d", address(number, 4, "0/24"), "-j", "MASQUERADE",
        )  # fmt: skip

    def close(self) -> None:
        """Everything goes, in whatever state it is."""
        remove(ROUTER)
        known = docker("network", "ls", "--format", "{{.Name}}").split()
        for name in known:
            if name.startswith(full_name("net")):
                docker("network", "rm", name)


def interface(node: Node, ip: str) -> str:
    """Name of the interface that has the address."""
    lines = [line.split() for line in in_network_of(node, "ip", "-o", "address").splitlines()]
    return next(line[1] for line in lines if line[3].split("/")[0] == ip)


def place_options(number: int) -> tuple[str, ...]:
    """Options that give a container the site's addresses."""
    return "--ip", address(number, 4), "--ip6", address(number, 6)


def shape(node: Node, interface: str, mbit: int) -> None:
    """A token bucket on what leaves through the interface."""
    in_network_of(
        node, "tc", "qdisc", "replace", "dev", interface, "root", "tbf",
        "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms",
    )  # fmt: skip
