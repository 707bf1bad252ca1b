"""What lies about the size or the sign of contributions share: PHASE is changed before the outer worker encodes it."""

import mmap
from typing import Any

import numpy as np

from dilocoxd.daemon.workers.outer_worker import OuterWorker
from dilocoxd.wire.local.buffers import PHASE
from dilocoxd.wire.local.outer_worker import FormContribution


def scale_contributions(factor: float, count: int | None = None) -> None:
    """Multiply every pseudo-gradient, or the first `count`, by `factor`, once per phase."""
    real = OuterWorker.ask_present
    scaled: set[int] = set()

    async def ask_present(self: OuterWorker, request: Any) -> Any:
        is_more = count is None or len(scaled) < count
        if isinstance(request, FormContribution) and request.phase not in scaled and is_more:
            scaled.add(request.phase)
            with mmap.mmap(self._buffers.fd(PHASE), 0) as window:
                values = np.frombuffer(window, dtype=np.float32)
                values *= np.float32(factor)
                del values
        return await real(self, request)

    OuterWorker.ask_present = ask_present  # type: ignore[method-assign]
