"""The files that lead to some states, held open: snapshots to begin at, and the payloads of the entries after them.

A running daemon drops both while they are read, at many rounds a minute within seconds. What is open stays readable
until it is closed, and looks like a path under /proc/self/fd. Torch-free: loading torch takes those seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dilocoxd.errors import ConfigError
from dilocoxd.store import snapshots
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.log_record import read_record
from dilocoxd.trained.chain import ChainLink
from dilocoxd.trained.found import StoredRun

FILES_MAX: Final = 512
"""Payloads held at a time, the oldest first, which go first; a process may open 1024 files."""


class WayGoneError(ConfigError):
    """Nothing on this disk leads to a round, or no longer."""


@dataclass(frozen=True, slots=True)
class Leg:
    """The way to state `number`: load `start` from `directory` (empty: genesis), then follow `links`.

    `start` None: go on from the state before.
    """

    number: int
    start: int | None
    directory: str
    links: tuple[ChainLink, ...]


class HeldFiles:
    """As long as this context lasts, what `ways` found can be read."""

    def __init__(self, run: StoredRun, chain: Sequence[ChainLink]) -> None:
        """`chain`: from entry 0 on."""
        self._run = run
        self._chain = chain
        self._links: dict[int, ChainLink | None] = {}
        self._directories: dict[int, str | None] = {}
        self._stack = ExitStack()

    def __enter__(self) -> HeldFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ways(self, numbers: Sequence[int]) -> list[Leg]:
        """How to come to each of these rounds, ascending. Raises WayGoneError if nothing here leads to one."""
        present, found = None, []
        for number in numbers:
            found.append(self._way(number, present))
            present = number
        return found

    def _way(self, number: int, present: int | None) -> Leg:
        if number > len(self._chain):
            raise ConfigError(
                f"round {number} is not there yet: the log ends with round {len(self._chain)}; choose one up to that"
            )
        rounds = self._run.rounds()
        starts = sorted({0, *rounds, *([] if present is None else [present])}, reverse=True)
        for start in (one for one in starts if one <= number):
            directory = None if start == present else self._snapshot(start, is_there=start in rounds)
            if start != present and directory is None:
                continue
            links = tuple(link for index in range(start, number) if (link := self._link(index)) is not None)
            if len(links) == number - start:
                return Leg(number, None if start == present else start, directory or "", links)
        good = ", ".join(str(one) for one in rounds if self._directories.get(one, "") is not None)
        raise WayGoneError(
            f"round {number} cannot be made again here: its snapshot is gone, and so are payloads of the log before it;"
            + (f" choose one of rounds {good}," if good else "")
            + " ask another site, or have a running one write a snapshot first (`dilocoxd export --now`)"
        )

    def _link(self, index: int) -> ChainLink | None:
        """Entry `index` with its payload, held; None if it was dropped."""
        if index not in self._links:
            self._links[index] = self._held_link(index)
        return self._links[index]

    def _held_link(self, index: int) -> ChainLink | None:
        link = self._chain[index]
        if not link.record.has_payload:
            return None
        if len(self._links) >= FILES_MAX:
            return link
        path = self._hold(link.path)
        record = read_record(path)  # of the file that is held: another may have taken its name since
        if record.signed.entry != link.entry:
            raise WayGoneError(f"{link.path}: the site changed to another branch meanwhile; try again")
        return replace(link, path=path, record=record) if record.has_payload else None

    def _snapshot(self, number: int, *, is_there: bool) -> str | None:
        """Directory of a snapshot, held; empty for genesis, None if it is gone or of another branch."""
        if not is_there:
            return ""
        if number not in self._directories:
            try:
                self._directories[number] = self._held_snapshot(number)
            except (FileNotFoundError, Corrupt):
                if (self._run.snapshot(number) / snapshots.INDEX_NAME).is_file():
                    raise
                self._directories[number] = None
        return self._directories[number]

    def _held_snapshot(self, number: int) -> str | None:
        """None: of a branch that was left. No entry of this chain follows from it."""
        directory = self._run.snapshot(number)
        index = snapshots.read_index(directory)
        if number < len(self._chain) and index.state_digest != self._chain[number].entry.state_digest.hex():
            return None
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dilocoxd-held-")))
        for name in (snapshots.INDEX_NAME, *(file.name for file in index.files)):
            (folder / name).symlink_to(self._hold(directory / name))
        return str(folder)

    def _hold(self, path: Path) -> Path:
        file = self._stack.enter_context(path.open("rb"))
        return Path(f"/proc/self/fd/{file.fileno()}")
