"""When a starting peer may begin to train: not before it has met the swarm and stands where the swarm stands.

A freshly initialised peer never becomes the swarm's state: with an address to ask and nothing of its own, it waits for
an answer. A peer that has entries of its own may go on alone after a while (the swarm may be it).
"""

import asyncio
from collections.abc import Mapping, Set
from typing import Final

from dilocoxd.daemon.parts import Daemon
from dilocoxd.ids import PeerId
from dilocoxd.rounds.joining import MEET_PATIENCE_S, CatchUp
from dilocoxd.telemetry.catalogue import SwarmJoined

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


async def catch_up(daemon: Daemon) -> None:
    """Return when we have caught up, or may go on without."""
    clock = asyncio.get_running_loop().time
    state = CatchUp(is_founder=not daemon.opened.config.network.bootstrap)
    while True:
        live = {view.peer: int(view.height) for view in daemon.membership.views() if view.is_live}
        status = daemon.round_status()
        unconfirmed = status.unconfirmed if status is not None else frozenset()
        if state.is_done(daemon.ledger.chain.height, live, unconfirmed, clock()):
            return
        daemon.lifecycle.enter("catching_up", f"{_reason(daemon, live, unconfirmed)} (to height {state.target})")
        await asyncio.sleep(LOOK_S)


def _reason(daemon: Daemon, live: Mapping[PeerId, int], unconfirmed: Set[PeerId]) -> str:
    if live and unconfirmed >= live.keys():
        return f"somebody else than {', '.join(sorted(live)[:3])}, whose chain could not be taken"
    return daemon.recovery.text or ("recovery to start" if live else "a peer of the run to come back")
