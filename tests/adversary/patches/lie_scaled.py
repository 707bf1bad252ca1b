"""What lies about the size or the sign of contributions share: PHASE is changed before the outer worker encodes it."""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dilocoxd.daemon.workers.outer_worker import OuterWorker
from dilocoxd.wire.local.buffers import PHASE
from dilocoxd.wire.local.outer_worker import FormContribution

LARGEST = 2.0**44
"""A site offers up to 16 times as much (OFFER_MAGNITUDE_MAX): what clipping leaves of one stays in the next."""


def scale_contributions(factor: float) -> None:
    """Multiply every pseudo-gradient by `factor`, once per phase."""
    _change_contributions(lambda values: factor)


def blow_up_contributions(count: int | None = None) -> None:
    """Make every pseudo-gradient, or the first `count`, as large as it can be, whatever its phase has trained: a factor
    leaves a model of a finite loss where the phase had one inner step, and from then on what it gives is too large."""

    def factor_of(values: npt.NDArray[np.float32]) -> float:
        largest = float(np.abs(values).max())
        return LARGEST / largest if largest else 1.0

    _change_contributions(factor_of, count)


def _change_contributions(factor_of: Callable[[npt.NDArray[np.float32]], float], count: int | None = None) -> None:
    real = OuterWorker.ask_present
    scaled: set[int] = set()

    async def ask_present(self: OuterWorker, request: Any) -> Any:
        is_more = count is None or len(scaled) < count
        if isinstance(request, FormContribution) and request.phase not in scaled and is_more:
            scaled.add(request.phase)
            with mmap.mmap(self._buffers.fd(PHASE), 0) as window:
                values = np.frombuffer(window, dtype=np.float32)
                values *= np.float32(factor_of(values))
                del values
        return await real(self, request)

    OuterWorker.ask_present = ask_present  # type: ignore[method-assign]
