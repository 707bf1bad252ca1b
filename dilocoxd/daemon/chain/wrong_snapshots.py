"""Own snapshots that are proved wrong: nobody gets them any more, and a download takes from them what is right.

Only what the files themselves prove counts: a worker that fails to load a snapshot proves nothing about it.
"""

import contextlib
import errno
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import download_directory, move_in, read_index, remove_downloads, verify

_NO_PROOF: Final = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Of rights and of what this process has left: the next start may read it, and all entries are still needed then."""


def is_wrong(directory: Path, log: EntryLog) -> bool:
    """Its files are not what its index says, or that is not the state that the next entry was voted on. Blocks, and
    reads all of it. What we may not read, or have nothing left to read it with, is not known to be wrong."""
    try:
        index = verify(directory)
        return index.round < log.height and index.state_digest != log.entry(index.round).entry.state_digest.hex()
    except StoreError as error:
        cause = error.__cause__
        return isinstance(error, Corrupt) and not (isinstance(cause, OSError) and cause.errno in _NO_PROOF)


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
