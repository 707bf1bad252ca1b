"""A process that is a daemon as far as its workers can tell: ``python -m tests.integration.one_site.site_process
FOLDER``.

Prints one line `MARK PIDS...` when the real trainers (2 stages) train; then goes on until it is killed.
"""

import asyncio
import dataclasses
import sys
from pathlib import Path

import uvloop

from dilocoxd.daemon.workers.supervisor import keep_reaper, mark_this_process
from dilocoxd.ipc.process_tree import find_tree
from tests.integration.one_site.site_world import REAL_PIPELINE, make_run, running


async def main(folder: Path) -> None:
    mark = mark_this_process()
    settings = dataclasses.replace(make_run(folder, stages=2, delay="phase"), trainer_modules=REAL_PIPELINE)
    async with asyncio.TaskGroup() as group:
        group.create_task(keep_reaper(mark))
        async with running(settings, is_cold=True) as world:
            await world.until(lambda: len(world.committed) >= 1, "an entry")
            pids = await asyncio.to_thread(find_tree, mark)
            print(mark, *pids, flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
