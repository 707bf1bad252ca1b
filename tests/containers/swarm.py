"""Sites in containers: how each is placed, started and joined, and what they show together."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dilocoxd.wire.join_link import read_link
from tests.containers.engine import corpus, docker
from tests.containers.networks import Internet, address, multiaddr, network, place_options
from tests.containers.node import PACED, Node, paced_volume
from tests.harness.running.sites import get_json, wait_until

PATIENCE_S = 400.0
GRACE_S = 30
API_PORT = 8080
INNER_STEPS = 10
"""Two and a half seconds (node.PACED)."""
SETTINGS = {
    "data.corpus": '"/text"',
    "data.validation_sequences": "2",
    "strategy.inner_steps": str(INNER_STEPS),
    "strategy.extend_steps_max": str(20 * INNER_STEPS),
    "snapshot.every_rounds": "4",
}


@dataclass(frozen=True)
class Place:
    """A site and the network it lives in."""

    name: str
    network: int
    mbit: int
    is_public: bool = True
    has_ip4: bool = True


SITES = {
    "a": Place("a", 1, 200),
    "b": Place("b", 2, 100),
    "c": Place("c", 3, 50, is_public=False),
    "d": Place("d", 4, 50, has_ip4=False),
    "n": Place("n", 5, 20, is_public=False),
}


@dataclass(frozen=True)
class SiteNode(Node):
    """A site's container. This host is on every network, so the API is asked without a process in the container."""

    url: str = ""

    def get(self, path: str, port: int = API_PORT) -> Any | None:
        """See Node."""
        return get_json(f"{self.url}:{port}{path}")


class SwarmOfContainers:
    """The sites that run now."""

    def __init__(self, image: str, internet: Internet) -> None:
        self.internet = internet
        self._image = image
        self._text = corpus()
        for place in SITES.values():
            internet.add(place.network, place.mbit)
        self.nodes: dict[str, SiteNode] = {}
        self._invite = ""
        self.said: dict[str, str] = {}
        """Logs of containers that are gone."""

    # --- life of one site ---

    def run(self, name: str, *command: str) -> SiteNode:
        """A new container with a volume of its own."""
        place = SITES[name]
        host, any_host = (
            (address(place.network), "0.0.0.0") if place.has_ip4 else (f"[{address(place.network, 6)}]", "::")
        )
        node = SiteNode(name, f"http://{host}")
        # All containers share the cores of one machine.
        options = ["--host", "::", "--api-host", any_host, "--set", "parallel.threads_per_rank=1"]
        if place.is_public:
            families = (4, 6) if place.has_ip4 else (6,)
            for family in families:
                options += ["--announce", multiaddr(place.network, family)]
            options += ["--set", "network.relay_for_others=true"]
        paced = [part for item in PACED.items() for part in ("--env", "=".join(item))]
        docker(
            "run", "--detach", "--name", node.id, "--network", network(place.network), *place_options(place.network),
            *paced, *paced_volume(),
            "--sysctl", "net.ipv6.conf.all.disable_ipv6=0", "--volume", f"{node.id}:/var/lib/dilocoxd",
            "--volume", f"{self._text}:/text:ro", "--stop-timeout", str(GRACE_S), self._image,
            *command, *options,
        )  # fmt: skip
        self.nodes[name] = node
        self._plug_in(name)
        return node

    def _plug_in(self, name: str) -> None:
        place = SITES[name]
        self.internet.plug_in(self.nodes[name], place.network, place.mbit, has_ip4=place.has_ip4)

    def found(self, name: str) -> SiteNode:
        """The first site, with a new run."""
        settings = [part for item in SETTINGS.items() for part in ("--set", "=".join(item))]
        return self.run(name, "start", "tiny", *settings)

    def join(self, name: str, through: str, *, relays: tuple[str, ...] = (), family: int = 4) -> SiteNode:
        """A site that knows one address, and relays if it needs them."""
        command = ["join", self.link_of(through, family)]
        if relays:
            addresses = ", ".join(f'"{self.address_of(relay)}"' for relay in relays)
            command += ["--set", f"network.relays=[{addresses}]"]
        return self.run(name, *command)

    def link_of(self, through: str, family: int) -> str:
        """What friends are sent: one invite of the founder, with the address of the site to join through."""
        if not self._invite:
            founder = next(iter(self.nodes.values()))
            self._invite = founder.sh('dilocoxd invite --uses 16 "$DILOCOXD_DIR"').split()[-1]
        return replace(read_link(self._invite), address=self.address_of(through, family)).to_text()

    def address_of(self, name: str, family: int = 4) -> str:
        """What another site is given to join through this one."""
        return f"{multiaddr(SITES[name].network, family)}/p2p/{self.peer_id(name)}"

    def start_again(self, name: str) -> None:
        """`docker start`: same container, same volume."""
        docker("start", self.nodes[name].id)
        self._plug_in(name)

    def forget(self, name: str, *, with_volume: bool) -> None:
        """Remove the container."""
        node = self.nodes.pop(name)
        self.said[name] = self.said.get(name, "") + node.logs()
        docker("rm", "--force", node.id)
        if with_volume:
            docker("volume", "rm", node.id)

    # --- what they show ---

    def describe(self) -> str:
        """What a failed wait shows."""
        return "\n".join(node.describe() for node in self.nodes.values())

    def wait(self, condition: Callable[[], Any], what: str) -> float:
        """Seconds until the condition held."""
        started = time.monotonic()
        wait_until(condition, what, PATIENCE_S, self.describe)
        return time.monotonic() - started

    def height(self, name: str) -> int:
        """Outer steps that a site has; -1 while it does not answer."""
        return int(self.nodes[name].status().get("height", -1))

    def height_now(self, name: str) -> int:
        """The same of a site that is there, once it answers."""
        return int(wait_until(lambda: self.height(name) + 1, f"{name} answers", PATIENCE_S, self.describe)) - 1

    def wait_rounds(self, names: str, more: int) -> float:
        """Seconds until all named sites have `more` further outer steps."""
        goal = max(self.height_now(name) for name in names) + more
        return self.wait(lambda: all(self.height(name) >= goal for name in names), f"{names} at height {goal}")

    def wait_joint(self, names: str) -> float:
        """Seconds until an entry from now on names exactly these sites (others are gone or away)."""
        wanted = {self.peer_id(name) for name in names}
        start = max(self.height_now(name) for name in names)

        def is_joint() -> bool:
            rows = self.nodes[names[0]].get(f"/v1/rounds?from={start}&limit=1000") or []
            return any({c["peer"] for c in row["contributors"]} == wanted for row in rows)

        return self.wait(is_joint, f"an entry with contributions of {', '.join(names)}")

    def peer_id(self, name: str) -> str:
        """Identity of a site."""
        node = self.nodes[name]
        return str(wait_until(lambda: node.status().get("peer_id"), f"{name} answers", PATIENCE_S, self.describe))

    def wait_equal(self, names: str) -> float:
        """Seconds until the sites have been seen at one height with one head and one anchor."""
        seen: dict[str, set[tuple[str, ...]]] = {name: set() for name in names}

        def is_equal() -> bool:
            for name, found in seen.items():
                status = self.nodes[name].status()
                if status:
                    found.add((str(status["height"]), status["chain_head"], status["anchor_sha256"]))
            return bool(set.intersection(*seen.values()))

        return self.wait(is_equal, f"equal anchors of {', '.join(names)}")

    def wait_relayed(self, name: str, other: str) -> dict[str, Any]:
        """What a site knows of another, once it knows an address of it through a relay."""
        wanted = self.peer_id(other)

        def relayed() -> list[dict[str, Any]]:
            peers = self.nodes[name].get("/v1/peers") or []
            ours = [peer for peer in peers if peer["peer_id"] == wanted]
            return [peer for peer in ours if any("/p2p-circuit" in text for text in peer["addresses"])]

        found = wait_until(relayed, f"{name} knows {other} through a relay", PATIENCE_S, self.describe)
        return dict(found[0])

    def tracebacks(self) -> dict[str, str]:
        """Site -> what looks like a crash in anything it said."""
        texts = dict(self.said)
        for name, node in self.nodes.items():
            texts[name] = texts.get(name, "") + node.logs()
        found = {}
        for name, text in texts.items():
            match = re.search(r"Traceback.*?\n\S+Error.*|never awaited|was never retrieved", text, re.S)
            if match is not None:
                found[name] = match[0][:3000]
        return found
