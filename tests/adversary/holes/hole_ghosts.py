"""Any signed record makes a peer live, whoever brought it."""

from dilocoxd.daemon.peers.membership import MembershipDriver


def apply() -> None:
    """Every record is its peer's own word."""
    real = MembershipDriver.on_record
    MembershipDriver.on_record = lambda self, record, is_own_word: real(self, record, True)  # type: ignore[method-assign]
