"""Sites behind home routers: namespaces with a private network each, a masquerading router in front, a bridge between.

Public addresses are those of somebody else, because libp2p takes the documentation's for private ones; nothing leaves
these namespaces. Routers let in what answers a connection from inside, as homes do. Needs root, ip and iptables.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import Literal

from tests.harness.running.network_namespaces import CLONE_NEWNET, NamespaceError, enter_namespace, run_tool

RouterKind = Literal["keeps ports", "draws ports"]
"""keeps ports: to all others a connection from one port inside comes from one port outside (endpoint-independent);
draws ports: from a random one for each (symmetric)."""


class NattedInternet:
    """Namespaces for `public` sites and for `hidden` ones, each behind a router of its own; a context manager."""

    def __init__(self, prefix: str, public: Sequence[str], hidden: Sequence[str], kind: RouterKind) -> None:
        self.prefix = prefix
        self.public = tuple(public)
        self.hidden = tuple(hidden)
        self._kind = kind

    def namespace(self, name: str) -> str:
        """Name of a site's namespace."""
        return f"{self.prefix}{name}"

    def address(self, name: str) -> str:
        """The site's own IP address."""
        if name in self.hidden:
            return f"192.168.{1 + self.hidden.index(name)}.2"
        return self._outside(self.public.index(name))

    def router_address(self, name: str) -> str:
        """The IP address that the others see of a hidden site."""
        return self._outside(len(self.public) + self.hidden.index(name))

    def _outside(self, place: int) -> str:
        return f"45.33.7.{1 + place}"

    def __enter__(self) -> "NattedInternet":
        try:
            self._build()
        except NamespaceError:
            self._remove()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        self._remove()

    def _spaces(self) -> list[str]:
        return ["hub", *self.public, *self.hidden, *(f"nat{name}" for name in self.hidden)]

    def inside(self, name: str, *command: str) -> str:
        """Run a command in a namespace: of a site, `nat<site>` of its router, `hub` of the bridge."""
        return run_tool("ip", "netns", "exec", self.namespace(name), *command)

    def _build(self) -> None:
        for name in self._spaces():
            run_tool("ip", "netns", "add", self.namespace(name))
            self.inside(name, "ip", "link", "set", "lo", "up")
        self.inside("hub", "ip", "link", "add", "bridge0", "type", "bridge")
        self.inside("hub", "ip", "link", "set", "bridge0", "up")
        for name in self.public:
            self._plug_in(name, self.address(name))
        for name in self.hidden:
            self._plug_in(f"nat{name}", self.router_address(name))
            self._hide(name, f"nat{name}")

    def _plug_in(self, name: str, address: str) -> None:
        cable = f"p{name}"
        self.inside("hub", "ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns",
                    self.namespace(name))  # fmt: skip
        self.inside("hub", "ip", "link", "set", cable, "master", "bridge0")
        self.inside("hub", "ip", "link", "set", cable, "up")
        self.inside(name, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        self.inside(name, "ip", "link", "set", "eth0", "up")

    def _hide(self, name: str, router: str) -> None:
        gateway = self.address(name).removesuffix(".2") + ".1"
        self.inside(router, "ip", "link", "add", "lan", "type", "veth", "peer", "name", "eth0", "netns",
                    self.namespace(name))  # fmt: skip
        for space, device, address in ((router, "lan", gateway), (name, "eth0", self.address(name))):
            self.inside(space, "ip", "addr", "add", f"{address}/24", "dev", device)
            self.inside(space, "ip", "link", "set", device, "up")
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

    def _remove(self) -> None:
        for name in self._spaces():
            with contextlib.suppress(NamespaceError):
                run_tool("ip", "netns", "del", self.namespace(name))

    @contextlib.contextmanager
    def standing_in(self, name: str) -> Iterator[None]:
        """What this thread starts meanwhile, processes and sockets, is in the namespace of `name`."""
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_namespace(self.namespace(name))
            yield
        finally:
            assert libc.setns(home, CLONE_NEWNET) == 0, "the thread stays in another network than it began in"
            os.close(home)
