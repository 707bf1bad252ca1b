"""Process on the head in the place of the trainers of a stage that runs on a node: `main`, forked like a rank would be.

Environment besides that of a rank: the node's connection and what opens its messages (ipc/client.py: NODE_*); RANK is
the first of them, LOCAL_WORLD_SIZE their number. Ends when the daemon, the node or a trainer there is gone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Final

from dilocoxd.config.site import site_in_force
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ipc import client
from dilocoxd.ipc.client import LINK_LOST_STATUS, DaemonGone
from dilocoxd.ipc.hang_files import DUMP_SIGNAL
from dilocoxd.ipc.nodes.faults import full_fault, mute_fault
from dilocoxd.ipc.sealed import ANSWER_S, FAILED_STATUS, SealedSocket, connection_taken_over, status_of_end
from dilocoxd.trainer.away.hang import SharedLink, forget_told, pass_on_questions
from dilocoxd.trainer.away.relay import StageEnded, StageRelay
from dilocoxd.trainer.channel import exit_when_daemon_goes
from dilocoxd.wire.local.node import PartFolder, StartStage

LINK_END_MS: Final = 500
"""So long the end of the link to a node may come behind that of the daemon's socket, if both ended for one reason."""


def main() -> int:
    """Stand for one stage; returns the exit code."""
    signal.signal(DUMP_SIGNAL, signal.SIG_IGN)  # until somebody can be asked: else it would end the process
    run_directory = Path(os.environ[client.RUN_DIRECTORY_VARIABLE])
    try:
        start = _start(run_directory)
        sealed = connection_taken_over(os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    # The relay's thread may be waiting for the node.
    watch = partial(exit_when_daemon_goes, status=lambda: _status_without_daemon(sealed))
    link = SharedLink(sealed)
    relay = StageRelay(link, start, run_directory, watch)
    try:
        forget_told(run_directory, range(start.first_rank, start.first_rank + start.here))
        link.send(start)
        folder = link.receive(ANSWER_S)
        if not isinstance(folder, PartFolder):
            told = getattr(folder, "reason", f"the node said {type(folder).__name__}")
            raise StageEnded(told, full_fault(folder))
        pass_on_questions(link.send)
        relay.run()
    except (DaemonGone, StageEnded, EOFError, OSError, WireError) as error:
        return _ended(relay, error)
    return 0


def _ended(relay: StageRelay, error: Exception) -> int:
    """Tell why, here and to the daemon. Where the connection has ended nobody failed, and it is held against nobody."""
    if isinstance(error, StageEnded) and error.is_well:
        return 0
    if fault := (error.fault if isinstance(error, StageEnded) else mute_fault(error)):
        sys.stderr.write(f"{relay.name}: {fault.detail}\n")
        sys.stderr.flush()
        relay.tell_fault(fault)
        return LINK_LOST_STATUS
    status = status_of_end(error)
    told = f"the connection to its node ended ({error})" if status == LINK_LOST_STATUS else str(error)
    sys.stderr.write(f"{relay.name}: {told}\n")
    sys.stderr.flush()
    relay.tell_failure(told)
    return status


def _status_without_daemon(sealed: SealedSocket) -> int:
    node = select.poll()
    node.register(sealed.fileno(), select.POLLRDHUP | select.POLLHUP)
    return LINK_LOST_STATUS if node.poll(LINK_END_MS) else FAILED_STATUS


def _start(run_directory: Path) -> StartStage:
    return StartStage(
        os.environ[client.NODE_SERVED_VARIABLE],
        int(os.environ["RANK"]),
        int(os.environ["LOCAL_WORLD_SIZE"]),
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["MASTER_PORT"]),
        os.environ.get(client.PEER_VARIABLE, ""),
        (run_directory / "run.toml").read_bytes(),
        site_in_force(run_directory / "site.toml"),  # the variables of this machine are none of the node's
        round(float(os.environ.get(client.NODE_GRACE_VARIABLE) or 0.0) * 1000),
    )
