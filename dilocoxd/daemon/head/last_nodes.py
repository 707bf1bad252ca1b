"""Which machine ran which outer part last: `site/nodes.json`, so that a head that starts again can name what it misses.

For people, and to know a node again that was started anew without its folder: it may be lost, and costs a wait then.
"""

import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dilocoxd.daemon.head.waiting import NodeProcess
from dilocoxd.errors import StoreError
from dilocoxd.store.durable import write_file

NAME_MAX: Final = 200
"""Characters of one machine's name and address."""


@dataclass(frozen=True, slots=True)
class _Last:
    node: str
    """For people."""
    process: NodeProcess | None = None


class LastNodes:
    """Of the parts that run on nodes."""

    def __init__(self, path: Path, served: Collection[str]) -> None:
        """`served`: what the parts are called; nothing else is kept. Reads the file, if there is one."""
        self._path = path
        self._nodes = {name: node for name, node in _read(path).items() if name in served}

    def of(self, served: str) -> str:
        """Empty: no machine is known."""
        return self._nodes[served].node if served in self._nodes else ""

    def process_of(self, served: str) -> NodeProcess | None:
        """That ran it; None: not known."""
        return self._nodes[served].process if served in self._nodes else None

    def note(self, served: str, node: str, process: NodeProcess) -> None:
        """It runs there now. Blocks; a file that cannot be written costs a name after the next start, and no more."""
        last = _Last(node[:NAME_MAX], process)
        if self._nodes.get(served) == last:
            return
        self._nodes[served] = last
        rows = {name: _row(each) for name, each in self._nodes.items()}
        with contextlib.suppress(StoreError):
            write_file(self._path, (json.dumps(rows, indent=1, sort_keys=True) + "\n").encode())


def _row(last: _Last) -> Any:
    if last.process is None:
        return last.node
    return {"node": last.node, "place": last.process.place, "start": last.process.start}


def _read(path: Path) -> dict[str, _Last]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    rows = found.items() if isinstance(found, dict) else ()
    return {str(name): last for name, row in rows if (last := _last(row)) is not None}


def _last(row: Any) -> _Last | None:
    match row:
        case str():  # of an earlier version
            return _Last(row[:NAME_MAX])
        case {"node": str(node), "place": [*place], "start": str(start)}:
            return _Last(node[:NAME_MAX], NodeProcess(tuple(map(str, place)), start))
        case _:
            return None
