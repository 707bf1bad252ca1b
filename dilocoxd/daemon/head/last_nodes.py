"""Which machine ran which outer part last: `site/nodes.json`, so that a head that starts again can name what it misses.

For people only: nothing is decided by it, and it may be lost.
"""

import contextlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError
from dilocoxd.store.durable import write_file

NAME_MAX: Final = 200
"""Characters of one machine's name and address."""


class LastNodes:
    """Of the parts that run on nodes."""

    def __init__(self, path: Path, served: Collection[str]) -> None:
        """`served`: what the parts are called; nothing else is kept. Reads the file, if there is one."""
        self._path = path
        self._nodes = {name: node for name, node in _read(path).items() if name in served}

    def of(self, served: str) -> str:
        """Empty: no machine is known."""
        return self._nodes.get(served, "")

    def note(self, served: str, node: str) -> None:
        """It runs there now. Blocks; a file that cannot be written costs a name after the next start, and no more."""
        if self._nodes.get(served) == node:
            return
        self._nodes[served] = node[:NAME_MAX]
        with contextlib.suppress(StoreError):
            write_file(self._path, (json.dumps(self._nodes, indent=1, sort_keys=True) + "\n").encode())


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {str(name): node[:NAME_MAX] for name, node in pairs if isinstance(node, str)}
