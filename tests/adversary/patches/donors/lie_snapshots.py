"""Its snapshots hold another state than their index says, and all their hashes fit (TRUST H4). After with_snapshots."""

from dilocoxd.ids import Digest
from tests.harness.synthetic.fake_site import GENESIS, FakeSite

MADE_UP = Digest(bytes(len(GENESIS)))


def apply() -> None:
    """The same for all who lie so, whom most of the donors then agree with."""
    FakeSite.written = MADE_UP  # type: ignore[attr-defined]
