"""The command that others join with, as text and as a QR code (segno, ISO/IEC 18004)."""

from functools import lru_cache
from typing import Final

import segno

from dilocoxd.answers.peers import JoinLine

INVITE: Final = "dilocoxd invite RUN_DIR"


@lru_cache(maxsize=4)
def join_line(address: str, admission: str) -> JoinLine:
    """For this address of ours; made once for each. A link holds a secret, and this answer needs no token."""
    command = f"dilocoxd join {address}" if admission != "invite" else INVITE
    rows = tuple("".join(str(int(bool(module))) for module in row) for row in segno.make_qr(command).matrix_iter())
    return JoinLine(address=address, command=command, qr=rows)
