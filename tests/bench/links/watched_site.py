"""A daemon whose trainers have steps of a fixed length, and which counts its syncs: `... watched_site RUN_DIR`.

RUN_DIR/syncs.jsonl has a line for each: when it began and ended, in seconds of the monotonic clock.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dilocoxd.api.server import serve_api
from dilocoxd.daemon.app import run_daemon
from tests.bench.headline.site import make_site

FILE_NAME = "syncs.jsonl"


def watched(path: Path, sync: Callable[[int], None]) -> Callable[[int], None]:
    """`sync` with a line in `path` for each call, from whatever thread."""
    file = path.open("a", buffering=1, encoding="utf-8")

    def call(descriptor: int) -> None:
        began = time.monotonic()
        sync(descriptor)
        file.write(json.dumps([began, time.monotonic()]) + "\n")

    return call


if __name__ == "__main__":
    run_dir = Path(sys.argv[1])
    os.fsync = watched(run_dir / FILE_NAME, os.fsync)
    sys.exit(run_daemon(run_dir, serve_api, make_site))
