"""What a donor says of a snapshot's size follows from the model, or is refused before a byte of it is fetched (H4)."""

import pytest

from dilocoxd.daemon.recovery.snapshot_fetch import check_sizes, index_bytes_max
from dilocoxd.errors import WireError
from dilocoxd.store.snapshots import (
    ANCHOR_NAME,
    CHUNK_BYTES,
    INDEX_BYTES_MAX,
    MOMENTUM_NAME,
    SnapshotFile,
    SnapshotIndex,
)

NUMEL = 1_000_000_000
STATE = 4 * NUMEL


def an_index(anchor: int, momentum: int = STATE) -> SnapshotIndex:
    def file(name: str, size: int) -> SnapshotFile:
        return SnapshotFile(name, size, ("0" * 64,) * -(-size // CHUNK_BYTES))

    return SnapshotIndex("run", 3, "", "", "", (file(ANCHOR_NAME, anchor), file(MOMENTUM_NAME, momentum)))


def test_snapshot_of_the_model_is_taken() -> None:
    index = an_index(STATE + 4096)
    check_sizes(index, NUMEL, "a")
    assert len(index.encode()) < index_bytes_max(NUMEL) < 8 << 20
    check_sizes(an_index(1 << 40), 0, "a model whose size is not known yet")
    assert index_bytes_max(0) == INDEX_BYTES_MAX


@pytest.mark.parametrize(("anchor", "momentum"), [(1 << 40, STATE), (STATE - 1, STATE), (STATE, 1 << 40)])
def test_snapshot_of_something_else_is_refused(anchor: int, momentum: int) -> None:
    with pytest.raises(WireError, match="is of no state of 1000000000 values"):
        check_sizes(an_index(anchor, momentum), NUMEL, "a")
