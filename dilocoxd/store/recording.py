"""Files in which a daemon writes down, compressed, what its round machine was told; one file for each of its lives.

Each record is readable as soon as it is written: its length, then itself, deflated in one stream with a flush after
every record. What a crash tore off at the end is left out when reading. A file that has reached its limit ends there.
"""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError
from dilocoxd.store.durable import store_error

FILES_KEPT: Final = 3
SUFFIX: Final = ".rounds"
RECORD_BYTES_MAX: Final = 16 << 20
_LENGTH_BYTES: Final = 4
_CHUNK: Final = 1 << 16


def recordings(directory: Path) -> list[Path]:
    """All recordings, oldest first."""
    return sorted((path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdecimal()), key=lambda p: int(p.stem))


class Recording:
    """The file of this life. Not durable: it is for people who look for a reason, not for the protocol."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        """Raises StoreError. Older files than the newest FILES_KEPT - 1 are removed."""
        known = recordings(directory)
        number = int(known[-1].stem) + 1 if known else 1
        self.path = directory / f"{number:06d}{SUFFIX}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in known[: max(0, len(known) - FILES_KEPT + 1)]:
                path.unlink(missing_ok=True)
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise store_error("starting the recording of rounds", self.path, error) from error
        self._deflate = zlib.compressobj(6)
        self._left = bytes_max
        self.is_full = False

    def write(self, record: bytes) -> None:
        """Append one record; nothing any more once the limit is reached or the disk refuses (`is_full`)."""
        if self.is_full:
            return
        data = self._deflate.compress(len(record).to_bytes(_LENGTH_BYTES, "little") + record)
        data += self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._left -= len(data)
        try:
            self._file.write(data)
        except OSError:
            self._left = 0
        if self._left <= 0:
            self.is_full = True
            self.close()

    def close(self) -> None:
        """Nothing is written after it."""
        self.is_full = True
        with contextlib.suppress(OSError):
            self._file.close()


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a file, as far as they are whole. Raises StoreError if it cannot be read or is no recording."""
    inflate, held = zlib.decompressobj(), bytearray()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                held += inflate.decompress(chunk)
                while len(held) >= _LENGTH_BYTES:
                    length = int.from_bytes(held[:_LENGTH_BYTES], "little")
                    if length > RECORD_BYTES_MAX:
                        raise StoreError(f"{path}: no recording of rounds, or a damaged one")
                    if len(held) < _LENGTH_BYTES + length:
                        break
                    yield bytes(held[_LENGTH_BYTES : _LENGTH_BYTES + length])
                    del held[: _LENGTH_BYTES + length]
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})") from error
    except zlib.error as error:
        raise StoreError(f"{path}: no recording of rounds, or a damaged one ({error})") from error
