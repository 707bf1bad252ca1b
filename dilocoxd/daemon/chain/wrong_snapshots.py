"""Own snapshots that are proved wrong: nobody gets them any more, and a download takes from them what is right.

Only what the files themselves prove counts: a worker that fails to load a snapshot proves nothing about it.
"""

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from dilocoxd.store.durable import Corrupt
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import download_directory, move_in, read_index, remove_downloads, verify


def is_wrong(directory: Path, log: EntryLog) -> bool:
    """Its files are not what its index says, or that is not the state that the next entry was voted on. Blocks, and
    reads all of it. Raises StoreError when our disk fails."""
    try:
        index = verify(directory)
    except Corrupt:
        return True
    return index.round < log.height and index.state_digest != log.entry(index.round).entry.state_digest.hex()


def set_aside(wrong: Iterable[Path], height: int) -> None:
    """Make them downloads that were begun, whose right chunks need not be fetched; those up to `height`, where our own
    log leads to, are of no use and go. Blocks. Raises StoreError."""
    for directory in wrong:
        move_in(directory, download_directory(directory.parent, int(directory.name)))
        remove_downloads(directory.parent, height)


def remove_others(directories: Iterable[Path], state_digest: bytes) -> None:
    """Delete those of another state than this. Blocks."""
    for directory in directories:
        with contextlib.suppress(Corrupt):
            if read_index(directory).state_digest == state_digest.hex():
                continue
        shutil.rmtree(directory, ignore_errors=True)
