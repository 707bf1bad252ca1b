"""When a starting peer may begin to train: not before it has met the swarm and stands where the swarm stands.

A freshly initialised peer never becomes the swarm's state: with an address to ask and nothing of its own, it waits for
an answer. A peer that has entries of its own may go on alone after a while (the swarm may be it).
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from dilocoxd.daemon.parts import Daemon
from dilocoxd.ids import PeerId
from dilocoxd.telemetry.catalogue import SwarmJoined

MEET_PATIENCE_S: Final = 15.0
LOOK_S: Final = 0.2


async def meet_others(daemon: Daemon) -> None:
    """Return when another peer has answered, or when there is nobody that we must wait for."""
    clock = asyncio.get_running_loop().time
    started = clock()
    membership = daemon.membership
    addresses = daemon.opened.config.network.bootstrap
    if not addresses and not daemon.table.known():
        return
    is_new = daemon.ledger.chain.height == 0 and bool(addresses)
    while not membership.live():
        if not is_new and clock() - started > MEET_PATIENCE_S:
            return
        errors = (daemon.swarm.contacts.last_error(PeerId(address)) for address in addresses)
        why = "; ".join(filter(None, errors))
        who = (
            "a first answer; this peer has no entries of its own and must not start a second run"
            if is_new
            else (f"another peer, up to {MEET_PATIENCE_S:g} s")
        )
        daemon.lifecycle.enter("joining", f"{who}{': ' + why if why else ''}")
        await asyncio.sleep(LOOK_S)
    live = membership.live()
    daemon.opened.events.emit(SwarmJoined(through=live[0], num_live=len(live), waited_s=clock() - started))


class CatchUp:
    """Whether to wait on: until we stand where the best live peer stood when we met it.

    If all that are ahead fall silent meanwhile, a peer with entries of its own goes on alone after a while; one without
    any does not, or it would begin a second run from genesis each time the network fails it at the wrong moment.
    """

    def __init__(self) -> None:
        self.target = 0
        self._alone_since: float | None = None

    def is_done(self, height: int, live_heights: Iterable[int], now: float) -> bool:
        """To be asked again and again; `live_heights`: where the live peers stand."""
        best = max(live_heights, default=0)
        self.target = max(self.target, best)
        if height >= self.target:
            return True
        if best > height:
            self._alone_since = None
            return False
        self._alone_since = now if self._alone_since is None else self._alone_since
        return height > 0 and now - self._alone_since > MEET_PATIENCE_S


async def catch_up(daemon: Daemon) -> None:
    """Return when we have caught up, or may go on without."""
    clock, state = asyncio.get_running_loop().time, CatchUp()
    while True:
        live = [int(view.height) for view in daemon.membership.views() if view.is_live]
        if state.is_done(daemon.ledger.chain.height, live, clock()):
            return
        what = daemon.recovery.text or ("recovery to start" if live else "a peer of the run to come back")
        daemon.lifecycle.enter("catching_up", f"{what} (to height {state.target})")
        await asyncio.sleep(LOOK_S)
