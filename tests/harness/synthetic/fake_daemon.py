"""Process of one daemon without workers: `python -m tests.harness.synthetic.fake_daemon RUN_DIR` (fake_site.py)."""

import sys
from pathlib import Path

from dilocoxd.api.server import serve_api
from dilocoxd.daemon.app import run_daemon
from dilocoxd.errors import ConfigError
from tests.harness.synthetic.fake_site import FakeSite

if __name__ == "__main__":
    try:
        sys.exit(run_daemon(Path(sys.argv[1]), serve_api, FakeSite))
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(ConfigError.exit_code)
