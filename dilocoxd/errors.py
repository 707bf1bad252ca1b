"""The few kinds of failure, each with one treatment (docs/style.md, errors), and what the system refused, in words."""

import errno
import os
from collections.abc import Sequence
from typing import Final

_SHOWN_MAX: Final = 160
_OF_THE_PATH: Final = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOENT,
        errno.EROFS,
    )
)
"""The operator gave a path that cannot be used, or runs as somebody who may not."""


class DilocoxdError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(DilocoxdError):
    """The operator must change something; one sentence: what, which value, what to do. Exit code 78.

    `problems`: a sentence for each thing that is wrong, for whoever can show more than one; the text alone otherwise.
    """

    exit_code = 78

    def __init__(self, text: str, problems: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems) or (text,)


class WireError(DilocoxdError):
    """Bytes that do not follow the specification; `code` is the name in protocol/registry.toml."""

    def __init__(self, code: str, detail: str, proof: bytes = b"") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.proof = proof
        """What the one who is refused may check for itself: the revocation of its membership (protocol M4)."""


class ProtocolViolation(DilocoxdError):
    """A well-formed message that breaks a rule; the peer is penalised and counted, we go on."""

    def __init__(self, peer: str, rule: str, detail: str) -> None:
        super().__init__(f"{peer} broke {rule}: {detail}")
        self.peer = peer
        self.rule = rule
        self.detail = detail


class PeerError(DilocoxdError):
    """A remote peer failed, stalled or refused; caught in the driver, counted, and we go on."""


class WorkerError(DilocoxdError):
    """A local worker died or answered wrongly; restarted within its budget."""


class CommandRefused(DilocoxdError):
    """The daemon cannot carry out an operator's command now; one sentence."""


class StoreError(DilocoxdError):
    """Disk full, corrupt or unreadable. Fatal for the operation that met it."""


def reason_of(error: BaseException) -> str:
    """Why it failed, for a sentence that says where: of what the system refused no number, and the path not again."""
    if isinstance(error, OSError) and error.errno:
        # asyncio's own words are "Connect call failed" with the address once more; names have numbers below zero.
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error) or type(error).__name__


def of_the_system(error: OSError) -> ConfigError | StoreError:
    """What the system refused, as one sentence: a path that cannot be used is the operator's, the rest a disk's."""
    reason = reason_of(error)
    if error.filename is None and isinstance(error, FileNotFoundError):
        return ConfigError("the folder where we are was removed; change into one that is there")
    if error.filename is None:
        return StoreError(f"the output cannot be written ({reason}); free space where it goes, or send it elsewhere")
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    shown = path if len(path) <= _SHOWN_MAX else f"{path[:_SHOWN_MAX]}..."
    if error.errno in _OF_THE_PATH:
        return ConfigError(f"{shown}: cannot be used ({reason}); check the path, its owner and its permissions")
    return StoreError(f"{shown}: cannot be used ({reason}); check the disk it is on, and free space there")
