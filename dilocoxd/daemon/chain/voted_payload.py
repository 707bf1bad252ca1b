"""The payload of the entry that this site will vote for, written to disk while its segments come.

A vote needs it on disk (R2, R3): who dies between its vote and its commit is locked on an entry that it must be able to
finish. When the last segment is here only that one is left to be written. The file has the place of a log record's
front free (store/log_record.py), so the votes make it the record, and the payload is written once.
What is written early is not believed: it counts when its bytes are those of the vote, and the sha256 that it had when
it was written is the one that the entry names. Attempts that fail leave bytes of no use, nothing else.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError
from dilocoxd.store.durable import TEMPORARY_SUFFIX, EarlyWriter, store_error
from dilocoxd.store.log_record import PAYLOAD_AT

EARLY_BYTES_MIN: Final = 1 << 20
"""Payloads below are written when the vote is due: that is one write."""


class VotedPayload:
    """`promise.payload` and what will replace it. One caller at a time; everything blocks."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.temporary: Final = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._writer = EarlyWriter(0o644)

    def write_early(self, source: int, offset: int, length: int) -> None:
        """Bytes of `source` that are probably those of the entry. What fails is told by `finish`."""
        try:
            self._writer.open(self.temporary)
            self._writer.put(source, offset, length, PAYLOAD_AT + offset)
            self._writer.sync_early()
        except (OSError, EOFError):
            self._writer.drop()

    def finish(self, source: int, lengths: Sequence[int], hashes: Sequence[bytes]) -> bool:
        """All of it is on disk under the temporary name. False: some segment of `source` does not have its hash.
        Raises StoreError; nothing is left then."""
        offset, found = 0, []
        try:
            self._writer.open(self.temporary)
            for length in lengths:
                found.append(self._writer.put(source, offset, length, PAYLOAD_AT + offset))
                offset += length
            self._writer.finish(PAYLOAD_AT + offset)
        except OSError as error:
            self._writer.drop()
            raise store_error("keeping the payload we vote for", self.path, error) from error
        except EOFError:
            self._writer.drop()
            raise StoreError("the payload we vote for ends too early") from None
        return found == [bytes(each) for each in hashes]

    def drop(self) -> None:
        """Nothing of the next payload is there."""
        self._writer.drop()
        with suppress(OSError):
            self.temporary.unlink(missing_ok=True)

    def restore(self, target: int, lengths: Sequence[int], hashes: Sequence[bytes]) -> bool:
        """The payload is in `target` again; False: it is not that of these hashes, or cannot be read."""
        return len(lengths) == len(hashes) and any(
            self._restore_from(start, target, lengths, hashes) for start in (PAYLOAD_AT, 0)
        )  # 0: as it was written before it could become a record of the log

    def _restore_from(self, start: int, target: int, lengths: Sequence[int], hashes: Sequence[bytes]) -> bool:
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                offset = 0
                for length, expected in zip(lengths, hashes, strict=True):
                    data = file.read(length)
                    if hashlib.sha256(data).digest() != expected:
                        return False
                    os.pwrite(target, data, offset)
                    offset += length
        except OSError:
            return False
        return True
