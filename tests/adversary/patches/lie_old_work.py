"""Offers the work of its first round again and again: under its old number, or with `as-new` in the working directory
under the next one (TRUST C4: stale and copied work)."""

import random
from pathlib import Path
from typing import Any

from dilocoxd.ids import PhaseId, RoundIndex
from tests.adversary.holes import hole_old_work
from tests.harness.synthetic.fake_site import FakeSite

AS_NEW = "as-new"


def apply() -> None:
    """For FakeSite. Its own machine lets it."""
    hole_old_work.apply()
    honest, as_new, first = FakeSite._offer, Path(AS_NEW).absolute(), list[tuple[PhaseId, RoundIndex]]()

    def offer(self: Any) -> None:
        if self._in_flight is not None:
            return
        self._rng, here = random.Random(0), self._round
        if first:
            phase, self._round = first[0]
            self._phase = self._phase if as_new.exists() else PhaseId(phase - 1)
        honest(self)
        if not first and self._in_flight is not None:
            first.append((self._in_flight, here))
        self._round = here

    FakeSite._offer = offer  # type: ignore[method-assign]
