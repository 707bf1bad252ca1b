"""When a starting peer may begin to train: not before it has met the swarm and stands where the swarm stands.

A freshly initialised peer never becomes the swarm's state: with an address to ask and nothing of its own, it waits for
an answer. A peer that has entries of its own may go on alone after a while (the swarm may be it).
"""

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from dilocoxd.daemon.peers.membership import MembershipDriver
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.ids import PeerId
from dilocoxd.machines.membership.catch_up import MEET_PATIENCE_S, CatchUp
from dilocoxd.telemetry.catalogue import SwarmJoined
from dilocoxd.telemetry.events import EventLog

LOOK_S: Final = 0.05
LOST: Final = (
    "a site that has entries of this run: this one had some, and has lost them; if no other has any either, remove"
    " `promise` from the run's directory to begin the run again"
)
NAMED: Final = (
    "a site that has entry {height} of this run, which the join link names: those that answer have none yet, as a site"
    " that is just starting"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a starting peer looks at, and where it says what it waits for."""

    bootstrap: tuple[str, ...]
    """Addresses that it was told to ask."""
    membership: MembershipDriver
    height: Callable[[], int]
    """Where we stand."""
    had_entries: Callable[[], bool]
    """Whether we took part in rounds above genesis, in this life or one before."""
    named_height: int
    """Of the entry that the join link names; 0: none. Somebody has it, whatever those say who answer: who starts anew
    itself says that it has none, until it has read its log."""
    contact_error: Callable[[PeerId], str]
    """Why an address of `bootstrap` does not answer; empty: not known."""
    unconfirmed: Callable[[], Set[PeerId]]
    """Peers whose chain could not be taken."""
    recovery_text: Callable[[], str]
    lifecycle: Lifecycle
    events: EventLog


async def meet_others(seen: Surroundings) -> None:
    """Return when another peer has answered, or when there is nobody that we must wait for."""
    clock = asyncio.get_running_loop().time
    started = clock()
    if not seen.bootstrap and not seen.membership.known():
        return
    is_new = seen.height() == 0 and bool(seen.bootstrap)
    while not seen.membership.live():
        if not is_new and clock() - started > MEET_PATIENCE_S:
            return
        errors = (seen.contact_error(PeerId(address)) for address in seen.bootstrap)
        why = "; ".join(filter(None, errors))
        who = (
            "a first answer; this peer has no entries of its own and must not start a second run"
            if is_new
            else (f"another peer, up to {MEET_PATIENCE_S:g} s")
        )
        seen.lifecycle.enter("joining", f"{who}{': ' + why if why else ''}")
        await asyncio.sleep(LOOK_S)
    live = seen.membership.live()
    seen.events.emit(SwarmJoined(through=live[0], num_live=len(live), waited_s=clock() - started))


async def catch_up(seen: Surroundings) -> None:
    """Return when we have caught up, or may go on without."""
    clock = asyncio.get_running_loop().time
    state = CatchUp(is_founder=not seen.bootstrap, had_entries=seen.had_entries())
    while True:
        live = {view.peer: int(view.height) for view in seen.membership.views() if view.is_live}
        unconfirmed = seen.unconfirmed()
        has_none = seen.height() == 0
        if state.may_begin(seen.height(), live, unconfirmed, clock()) and not (has_none and seen.named_height):
            return
        is_lost = seen.had_entries() and not any((seen.height(), *live.values()))
        reason = LOST if is_lost else _reason(seen.recovery_text(), live, unconfirmed)
        if not is_lost and seen.named_height and not any((seen.height(), *live.values())):
            reason = NAMED.format(height=seen.named_height)
        seen.lifecycle.enter("catching_up", f"{reason} (to height {state.target})")
        await asyncio.sleep(LOOK_S)


def _reason(recovery_text: str, live: Mapping[PeerId, int], unconfirmed: Set[PeerId]) -> str:
    if live and unconfirmed >= live.keys():
        return f"somebody else than {', '.join(sorted(live)[:3])}, whose chain could not be taken"
    return recovery_text or ("recovery to start" if live else "a peer of the run to come back")
