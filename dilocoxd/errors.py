"""The few kinds of failure, each with one treatment (docs/style.md, errors)."""

from collections.abc import Sequence


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
