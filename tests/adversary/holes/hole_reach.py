"""Without rule L19: whatever stands in the asker's record is tried."""

from dilocoxd.daemon.peers import dial_back


class Everything(frozenset[str]):
    """All addresses are the asker's own."""

    def intersection(self, *others: object) -> frozenset[str]:
        """What was asked for."""
        return frozenset(others[0])  # type: ignore[call-overload, no-any-return]


def apply() -> None:
    """Every address is the asker's own."""
    real = dial_back.try_address
    dial_back.try_address = lambda address, own: real(address, Everything())
