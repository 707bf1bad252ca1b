"""The command that others join with, as text and as a QR code (segno, ISO/IEC 18004)."""

import shlex
from functools import lru_cache

import segno

from dilocoxd.answers.peers import JoinLine


@lru_cache(maxsize=4)
def join_line(address: str, admission: str, run_directory: str) -> JoinLine:
    """For this address of ours; made once for each. A link holds a secret, and this answer needs no token: where one is
    needed, the command is that which makes it on this machine."""
    is_open = admission != "invite"
    command = f"dilocoxd join {address}" if is_open else f"dilocoxd invite {shlex.quote(run_directory)}"
    rows = tuple("".join(str(int(bool(module))) for module in row) for row in segno.make_qr(command).matrix_iter())
    return JoinLine(address=address, command=command, qr=rows)
