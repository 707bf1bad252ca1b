"""When a run is over: the chain holds its tokens (R24). The site rests, writes the last state to disk, hands the last
entry on, and leaves by itself.

Everybody decides the same from the same chain, so all sites end at the same entry, whenever each of them sees it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.daemon.chain.ledger import Ledger
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.telemetry.catalogue import RunCompleted
from dilocoxd.telemetry.events import EventLog

LOOK_S: Final = 0.2
HANDING_ON_S: Final = 60.0
"""So long live sites that are behind are waited for; who comes later takes the end from those that still run."""
END_OF_RUN: Final = "end of the run"


@dataclass(frozen=True, slots=True)
class Ending:
    """What the end of a run looks at."""

    stop_after_tokens: int
    """0: the run has no end."""
    ledger: Ledger
    peer_heights: Callable[[], list[int]]
    """Where the live peers stand."""
    write_last: Callable[[], Awaitable[None]]
    """Writes a snapshot of the newest state, which no entry follows."""
    lifecycle: Lifecycle
    events: EventLog


async def end_of_run(seen: Ending) -> str:
    """Why the site stops, once the run is complete and the live sites have its last entry; never, if it has no end."""
    if not seen.stop_after_tokens:
        await asyncio.Event().wait()
    clock = asyncio.get_running_loop().time
    while seen.ledger.chain.weight < seen.stop_after_tokens:  # noqa: ASYNC110 - a chain has no event
        await asyncio.sleep(LOOK_S)
    chain = seen.ledger.chain
    seen.ledger.pauses.hold(END_OF_RUN, "the run is complete")
    seen.events.emit(RunCompleted(height=chain.height, tokens=chain.weight))
    # Who asks for the run's model means this one, and commands take the newest snapshot.
    seen.lifecycle.enter("training", "the last state to be written to disk; the run is complete")
    await seen.write_last()
    deadline = clock() + HANDING_ON_S
    while any(height < chain.height for height in seen.peer_heights()) and clock() < deadline:
        seen.lifecycle.enter("training", "the other sites to take the last entry; the run is complete")
        await asyncio.sleep(LOOK_S)
    return f"the run is complete: {chain.weight:,} tokens in {chain.height} rounds"
