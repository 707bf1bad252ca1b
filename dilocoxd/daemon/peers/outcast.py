"""What a site does that finds itself evicted: it halts, says so, and adds no entry to a chain that nobody else takes.

The word of a peer that refuses it is only a claim; what counts is the revocation of its own membership, which that peer
shows with the refusal and which proves itself (protocol M4). A chain that says otherwise after a fork, or a fresh
invite, ends it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.daemon.chain.pauses import Pauses
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.ids import PeerId
from dilocoxd.wire.admission import Revocation

LOOK_S: Final = 0.5
EVICTED: Final = "evicted"
REMEDY: Final = "ask an authority for a new invite, stop this daemon, then `dilocoxd join LINK --dir RUN_DIR`"


@dataclass(frozen=True, slots=True)
class OutcastParts:
    """What is looked at and what is told."""

    eviction: Callable[[], Revocation | None]
    """What ended our membership."""
    shown_by: Callable[[], str]
    """The name of who has shown it; empty: it was known before this start."""
    in_touch: Callable[[], frozenset[PeerId]]
    """Who lets us in all the same: it may have taken a branch on which we are a member, which we must follow then."""
    halt_rounds: Callable[[bool], None]
    lifecycle: Lifecycle
    pauses: Pauses
    alerts: AlertBook
    tell_others: Callable[[], None]


class OutcastWatch:
    """Looks, and halts or goes on."""

    def __init__(self, parts: OutcastParts) -> None:
        self._parts = parts

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Once."""
        parts, eviction = self._parts, self._parts.eviction()
        parts.halt_rounds(eviction is not None and not parts.in_touch())
        text = told(eviction, parts.shown_by()) if eviction is not None else ""
        if text == parts.lifecycle.evicted:
            return
        parts.lifecycle.evicted = text
        if text:
            parts.pauses.hold(EVICTED, text)
            parts.alerts.alert(EVICTED, text)
        else:
            parts.pauses.release(EVICTED)
            parts.alerts.clear(EVICTED)
        parts.tell_others()


def told(eviction: Revocation, shown_by: str) -> str:
    """One sentence: by whom, who says so, what to do."""
    who = f"the votes of {len(eviction.votes)} members" if eviction.votes else "its authorities"
    shown = f" (shown by {shown_by})" if shown_by else ""
    return f"this site was evicted from the run by {who}{shown}: {REMEDY}"
