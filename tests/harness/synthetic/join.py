"""The real `dilocoxd join ADDR...` up to the daemon, whose trainers have no model (daemon.py)."""

from dilocoxd.api.server import serve_api
from dilocoxd.cli.joining import join
from dilocoxd.cli.main import main
from dilocoxd.daemon.app import run_daemon
from dilocoxd.store.rundir import RunDir
from tests.harness.synthetic.daemon import make_site


def run_with_synthetic_trainers(run_dir: RunDir) -> int:
    """In place of cli.commands.run_in_foreground."""
    return run_daemon(run_dir.path, serve_api, make_site)


if __name__ == "__main__":
    join.run_in_foreground = run_with_synthetic_trainers
    main()
