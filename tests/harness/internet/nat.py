"""Sites behind home routers: namespaces with a private network each, a masquerading router in front, a bridge between.

Public addresses are those of somebody else, because libp2p takes the documentation's for private ones; nothing leaves
these namespaces. Routers let in what answers a connection from inside, as homes do. Needs root, ip and iptables.
"""

from collections.abc import Sequence
from typing import Literal

from tests.harness.internet.namespaces import Namespaces

RouterKind = Literal["keeps ports", "draws ports"]
"""keeps ports: to all others a connection from one port inside comes from one port outside (endpoint-independent);
draws ports: from a random one for each (symmetric)."""


class NattedInternet(Namespaces):
    """Namespaces for `public` sites and for `hidden` ones, each behind a router of its own; a context manager.

    `nat<site>` is the namespace of a router, `hub` that of the bridge.
    """

    def __init__(self, prefix: str, public: Sequence[str], hidden: Sequence[str], kind: RouterKind) -> None:
        super().__init__(prefix)
        self.public = tuple(public)
        self.hidden = tuple(hidden)
        self._kind = kind

    def address(self, name: str) -> str:
        """The site's own IP address."""
        if name in self.hidden:
            return f"192.168.{1 + self.hidden.index(name)}.2"
        return self._outside(self.public.index(name))

    def router_address(self, name: str) -> str:
        """The IP address that the others see of a hidden site."""
        return self._outside(len(self.public) + self.hidden.index(name))

    def forward(self, name: str, port: int, inside: int | None = None) -> None:
        """Let a hidden site's router forward this TCP port to it, to its port `inside` if that is another one."""
        router, there, inside = f"nat{name}", self.address(name), inside or port
        wanted, to = ("-i", "eth0", "-p", "tcp", "--dport"), f"{there}:{inside}"
        self.inside(
            router, "iptables", "-w", "-t", "nat", "-A", "PREROUTING", *wanted, str(port), "-j", "DNAT", "--to", to
        )
        self.inside(router, "iptables", "-w", "-I", "FORWARD", *wanted, str(inside), "-d", there, "-j", "ACCEPT")

    def _outside(self, place: int) -> str:
        return f"45.33.7.{1 + place}"

    def _spaces(self) -> list[str]:
        return ["hub", *self.public, *self.hidden, *(f"nat{name}" for name in self.hidden)]

    def _build(self) -> None:
        self._add_spaces()
        self._add_bridge("hub")
        for name in self.public:
            self._plug_in(name, self.address(name), "hub")
        for name in self.hidden:
            self._plug_in(f"nat{name}", self.router_address(name), "hub")
            self._hide(name, f"nat{name}")

    def _hide(self, name: str, router: str) -> None:
        gateway = self.address(name).removesuffix(".2") + ".1"
        self._lay(router, "lan", name, self.address(name))
        self.inside(router, "ip", "addr", "add", f"{gateway}/24", "dev", "lan")
        self.inside(router, "ip", "link", "set", "lan", "up")
        self.inside(name, "ip", "route", "add", "default", "via", gateway)
        self.inside(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        ports = ("--random-fully",) if self._kind == "draws ports" else ()
        known = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
        for rule in (
            ("-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE", *ports),
            ("-A", "FORWARD", "-i", "eth0", *known, "-j", "ACCEPT"),
            ("-A", "FORWARD", "-i", "eth0", "-j", "DROP"),
            ("-A", "INPUT", "-i", "eth0", "-j", "DROP"),
        ):
            self.inside(router, "iptables", "-w", *rule)
