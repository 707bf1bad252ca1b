"""The time between being caught up and the first inner step: data are made, trainers load the model."""

import asyncio
from collections.abc import Callable
from typing import Final

from dilocoxd.daemon.process.lifecycle import Lifecycle

LOOK_S: Final = 0.05


async def prepare(lifecycle: Lifecycle, trains: Callable[[], bool], tell_others: Callable[[], None]) -> None:
    """Return when the trainers train (`trains`), or are held. Until then the site is `preparing`, and
    nobody waits for a contribution of it."""
    tell_others()
    while not (trains() or lifecycle.is_held):  # noqa: ASYNC110 - the site decides
        await asyncio.sleep(LOOK_S)
    lifecycle.enter("training")
    tell_others()
