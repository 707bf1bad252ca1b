"""A state of another run on this disk as a source of parameters: from a snapshot, or made again from its log."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from dilocoxd.errors import ConfigError
from dilocoxd.trained.anchor import AnchorReader
from dilocoxd.trained.choose import found_anchor
from dilocoxd.trained.found import StoredRun
from dilocoxd.wire.layout import ParamSpec

Floats = npt.NDArray[np.float32]


class StoredState:
    """State `number` of `run`, read once from the first parameter to the last, and checked against its hash.

    `scratch`: a file that may be made meanwhile. Raises ConfigError if nothing here leads to that state, StoreError
    if what does is damaged.
    """

    def __init__(self, run: StoredRun, number: int, scratch: Path, tell: Callable[[str], None]) -> None:
        self._anchor, _ = found_anchor(run, [number], scratch, lambda text: tell(f"reading {text}"))
        self._scratch = scratch
        self._entries = {entry.name: entry for entry in self._anchor.entries}
        self._name = f"round {number} of {run.manifest.run_id}"

    def __enter__(self) -> Self:
        self._file = self._anchor.open()
        self._reader = AnchorReader(self._anchor, self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._file.close()
        self._scratch.unlink(missing_ok=True)

    def require(self, specs: tuple[ParamSpec, ...]) -> None:
        """Raise ConfigError unless the state has just these parameters, in this order."""
        if len(specs) != len(self._entries):
            raise ConfigError(
                f"{self._name} has {len(self._entries)} parameters, the new run's model {len(specs)}; leave its model"
                " as it is"
            )
        for spec, entry in zip(specs, self._anchor.entries, strict=True):
            if (spec.name, spec.shape) != (entry.name, entry.shape):
                raise ConfigError(
                    f"{spec.name} is {list(spec.shape)} in the new run, but {self._name} has {entry.name} of"
                    f" {list(entry.shape)}; leave the fields of [model] alone that change a shape"
                )

    def values(self, spec: ParamSpec) -> Iterator[Floats]:
        """The next parameter's values, in pieces."""
        return self._reader.pieces(self._entries[spec.name])

    def finish(self) -> None:
        """Raise StoreError unless all that was read is the state that it is called."""
        self._reader.finish()
