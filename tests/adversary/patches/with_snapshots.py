"""No lie: a site without workers that writes its snapshots to disk and loads those of others, so that who is far behind
takes one.

The anchor's file is as long as one of so many values, for sizes are held against the model; what stands in it is the
state's digest, again and again.
"""

from pathlib import Path
from typing import Any

from dilocoxd.ids import Digest, RoundIndex
from dilocoxd.store.durable import write_file
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.store.snapshots import ANCHOR_NAME, SnapshotIndex, hash_chunks, verify
from dilocoxd.wire.local.outer_worker import SnapshotSaved, StateReady
from tests.harness.synthetic.fake_site import GENESIS, TOTAL, FakeSite

VALUE_BYTES = 4


def apply() -> None:
    """For FakeSite."""
    real_init, real_load = FakeSite.__init__, FakeSite.load_state

    def init(self: Any, settings: Any, emit: Any) -> None:
        real_init(self, settings, emit)
        manifest, _ = open_run_dir(settings.run_directory).load()
        self.run_id = manifest.run_id

    async def write_snapshot(self: Any, directory: str, *, timeout_s: float = 600.0) -> SnapshotSaved:
        folder = Path(directory)
        folder.mkdir(parents=True)
        content = self.written * (VALUE_BYTES * TOTAL // len(GENESIS))
        write_file(folder / ANCHOR_NAME, content)
        digest = self._digest.hex()
        index = SnapshotIndex(self.run_id, self._round, digest, digest, "", (hash_chunks(folder / ANCHOR_NAME),))
        write_file(folder / "index.json", index.encode())
        return SnapshotSaved(0, self._round, directory, len(content), 0.0)

    async def load_state(self: Any, directory: str, **named: Any) -> StateReady:
        if directory:
            index = verify(Path(directory))
            digest = (Path(directory) / ANCHOR_NAME).read_bytes()[: len(GENESIS)]
            self.snapshots[directory] = (RoundIndex(index.round), Digest(digest))
        return await real_load(self, directory, **named)

    FakeSite.written = property(lambda self: self._digest)  # type: ignore[attr-defined]
    FakeSite.__init__ = init  # type: ignore[method-assign]
    FakeSite.write_snapshot = write_snapshot  # type: ignore[method-assign]
    FakeSite.load_state = load_state  # type: ignore[method-assign]
