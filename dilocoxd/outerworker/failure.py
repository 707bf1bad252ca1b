"""How a request fails: a short code for the daemon and one sentence for the operator."""

from __future__ import annotations

from dilocoxd.errors import StoreError, WorkerError
from dilocoxd.store.durable import Corrupt, DiskFull


class RequestFailed(WorkerError):
    """The request could not be done and changed nothing (except LoadState, which says so, and an ApplyResult that
    answers `not_loaded`: no state is left). Sent as WorkerFailed.

    Kinds: `bad_request`, `bad_payload`, `bad_result`, `not_loaded`, `corrupt_snapshot`, `disk_full`, `store`, `busy`.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


def from_store(error: StoreError, corrupt_kind: str = "store") -> RequestFailed:
    """The answer to a request that failed on disk."""
    if isinstance(error, DiskFull):
        return RequestFailed("disk_full", str(error))
    return RequestFailed(corrupt_kind if isinstance(error, Corrupt) else "store", str(error))
