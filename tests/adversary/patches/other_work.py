"""No lie: a site without workers whose contributions are others in each of its lives, as those of training are."""

import random
from typing import Any

from tests.harness.synthetic.fake_site import FakeSite


def apply() -> None:
    """For FakeSite, which else repeats itself."""
    real = FakeSite.__init__

    def init(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self._rng = random.Random()

    FakeSite.__init__ = init  # type: ignore[method-assign]
