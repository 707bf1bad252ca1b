"""A daemon of which nothing runs but its API: real parts over a real log, and commands that ask it.

Its site is the one without workers (tests/harness/synthetic/fake_site.py). The run is one that admits by invite, and
its founder's key is here.
"""

import asyncio
import io
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from dilocoxd.api.server import serve_api
from dilocoxd.cli.client import ApiClient, client_for
from dilocoxd.cli.commands import announce_run
from dilocoxd.daemon.assembly import Daemon
from dilocoxd.daemon.control import DaemonControl
from dilocoxd.daemon.process.open_run import Opened
from dilocoxd.daemon.process.token import load_or_create_token
from dilocoxd.machines.admission.keys import SigningKey
from dilocoxd.store.admission import write_secret
from dilocoxd.store.log import EntryLog
from dilocoxd.swarm.discovery.identity import load_or_create
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import genesis_hash
from tests.harness.outer_worker.run_on_disk import make_run
from tests.harness.running.run_directories import free_port
from tests.harness.synthetic.fake_site import FakeSite
from tests.remedies.test_findings import invoke

KEY: Final = SigningKey(b"k" * 32)
PATIENCE_S: Final = 60
T = TypeVar("T")


class Standing:
    """Two rounds are in its log; while it is entered, its API answers."""

    daemon: Daemon
    control: DaemonControl

    def __init__(self, folder: Path, name: str = "run") -> None:
        admission: dict[str, object] = {"authorities": [KEY.public.hex()]}
        made = make_run(folder, rounds=2, snapshots_at=(0, 2), admission=admission, run={"name": name})
        self.run_dir, self.run = made.run_dir, str(made.run_dir.path)
        invoke("config", "set", self.run, f"network.port={free_port()}")
        self.url = self.listen_at(free_port())
        write_secret(self.run_dir.authority_key, KEY.seed.hex())
        load_or_create(self.run_dir.identity(self.run_dir.load()[1]))
        announce_run(self.run_dir)

    def listen_at(self, port: int) -> str:
        """From the next start on; its URL."""
        self.url = f"http://127.0.0.1:{port}"
        invoke("config", "set", self.run, f"api.port={port}")
        return self.url

    def client(self) -> ApiClient:
        """As commands that are given the run directory ask."""
        return client_for(self.run)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """On the daemon's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def __enter__(self) -> "Standing":
        self._loop, self._is_there, self._over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._is_there.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _serve(self) -> None:
        manifest, config = self.run_dir.load()
        identity = load_or_create(self.run_dir.identity(config))
        opened = Opened(self.run_dir, manifest, config, identity, EventLog(None, stream=io.StringIO()))
        log = EntryLog(self.run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))
        self.daemon = Daemon(opened, log, FakeSite)
        self.control = DaemonControl(self.daemon.control_parts(), lambda reason: None)
        token = load_or_create_token(self.run_dir.path / config.api.token_file)
        async with serve_api(self.daemon.view, self.control, config.api, token):
            self._is_there.set()
            await self._over.wait()
