"""Looks at the connections that were used a moment ago: whose host has stopped to answer is noticed within a second.

Reads counters of the kernel, and has it ask where nothing came for a second; machines/membership/hosts.py decides.
Bytes that came are a sign of life of the peer: on a thin link its records queue for many seconds behind its payloads.
Source: protocol/05-discovery.md, D11.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.membership.hosts import HostsHeard, HostWatch, LinkFacts
from dilocoxd.swarm.direct.kernel import ASK_AFTER_S, KernelFacts, Options, ask, facts_of, rest
from dilocoxd.swarm.direct.links import DataLink

LOOK_EVERY_S: Final = 0.1
LOOK_IDLE_S: Final = 0.5
"""While nothing has moved for ACTIVE_S."""
ACTIVE_S: Final = 10.0
"""Somebody may wait for a peer so long after something went or came by its connections."""
SPENT_MAX: Final = 0.02
"""Part of the time that looking may take, with many peers."""
SIGNS_EVERY_S: Final = 1.0
"""Of life: a few in the shortest silence that anybody asks about."""


class SignsOfLife:
    """Whose connections have brought bytes from one look to the next. Nobody can send them but who holds the key of the
    certificate, and no kernel makes any: what the process had handed over when it stood still comes, and no more."""

    def __init__(self) -> None:
        self._before: dict[DataLink, int] = {}

    def look(self, links: Mapping[PeerId, Sequence[DataLink]]) -> frozenset[PeerId]:
        """Peers of whom bytes came since the look before, on connections that were there then."""
        counts = {link: link.channel.num_heard for open_links in links.values() for link in open_links}
        before, self._before = self._before, counts
        return frozenset(
            peer
            for peer, open_links in links.items()
            if any(counts[link] != before.get(link, counts[link]) for link in open_links)
        )


class HostLooks:
    """Of all peers."""

    def __init__(
        self, on_heard: Callable[[HostsHeard], None], on_moved: Callable[[frozenset[PeerId]], None] = lambda moved: None
    ) -> None:
        """`on_moved`: told, about once a second, of whom bytes came."""
        self._on_heard, self._on_moved = on_heard, on_moved
        self._signs, self._signs_due = SignsOfLife(), 0.0
        self._watch = HostWatch()
        self._asked: dict[PeerId, Options] = {}
        self._silent: frozenset[PeerId] = frozenset()
        """As we said last."""

    async def run(self, links: Callable[[], Mapping[PeerId, Sequence[DataLink]]]) -> None:
        """Until cancelled. Where two connections of a peer could be asked, the first is."""
        clock = asyncio.get_running_loop().time
        while True:
            began, open_links = clock(), links()
            is_active = self.look(open_links, Monotonic(began))
            if began >= self._signs_due:
                self._signs_due = began + SIGNS_EVERY_S
                if moved := self._signs.look(open_links):
                    self._on_moved(moved)
            spent = clock() - began
            await asyncio.sleep(max(LOOK_EVERY_S if is_active else LOOK_IDLE_S, spent / SPENT_MAX))

    def look(self, links: Mapping[PeerId, Sequence[DataLink]], now: Monotonic) -> bool:
        """Whether anybody may be waited for."""
        facts: dict[PeerId, list[LinkFacts]] = {}
        self._asked = {peer: sock for peer, sock in self._asked.items() if peer in links}
        for peer, open_links in links.items():
            found = [(link.sock, fact) for link in open_links if (fact := facts_of(link.sock)) is not None]
            if found and (peer in self._silent or min(fact.moved_s for _, fact in found) <= ACTIVE_S):
                facts[peer] = [fact.link for _, fact in found]
                self._ask(peer, found)
            elif peer in self._asked:
                rest(self._asked.pop(peer))
        heard = self._watch.look(facts, now)
        if heard.silent or self._silent & heard.answering:
            self._on_heard(heard)
        self._silent = (self._silent & links.keys() | heard.silent) - heard.answering
        return bool(facts)

    def _ask(self, peer: PeerId, found: Sequence[tuple[Options, KernelFacts]]) -> None:
        if min(fact.link.heard_s for _, fact in found) >= ASK_AFTER_S:
            sock = self._asked[peer] = found[0][0]
            ask(sock)
