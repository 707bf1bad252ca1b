"""How long the formulas of `dilocoxd plan` would have had an exchange last, beside how long it lasted.

The link is not known to a site; what it got through while it was sending in the rounds before stands for it, waits and
round trips included. So a ratio far from 1 says: this exchange was not like those before, or something else than the
link took the time. Source: docs/planning.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.status import ExchangeTimes
from dilocoxd.config.footprint.loops import has_loops
from dilocoxd.daemon.site.interface import SiteLayout
from dilocoxd.machines.exchange.cost import LINE_SHARE, ExchangeWork, Link, exchange_cost

NEWEST_SHARE: Final = 0.3
"""Of the newest round in the smoothed speed."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One exchange that is over: what a site sent, while at least one payload was under way, and how long all took."""

    num_sites: int
    bytes_sent: int
    sending_s: float
    measured_s: float


class ExchangeForecast:
    """Predicts each exchange from those before; `newest` is the last one that could be compared."""

    def __init__(self, codec: str, layout: Callable[[], SiteLayout | None], *, is_gathered: bool = False) -> None:
        self._codec = codec
        self._is_gathered = is_gathered
        self._is_compiled = has_loops()
        self._layout = layout
        self._bytes_per_s = 0.0
        self.newest: ExchangeTimes | None = None

    def finished(self, exchanged: Exchanged) -> None:
        """An exchange is over; one without others, or in which nothing was sent, teaches nothing."""
        layout = self._layout()
        if layout is None or exchanged.num_sites < 2 or not exchanged.bytes_sent or exchanged.sending_s <= 0:
            return
        if self._bytes_per_s:
            line = 8 * self._bytes_per_s / LINE_SHARE
            predicted_s = exchange_cost(self._work(layout, exchanged.num_sites), Link(line, line, 0.0)).exchange_s
            self.newest = ExchangeTimes(predicted_s=predicted_s, measured_s=exchanged.measured_s)
        speed = exchanged.bytes_sent / exchanged.sending_s
        known = self._bytes_per_s or speed
        self._bytes_per_s = (1 - NEWEST_SHARE) * known + NEWEST_SHARE * speed

    def _work(self, layout: SiteLayout, num_sites: int) -> ExchangeWork:
        table = max(layout.payload_bytes.values(), key=lambda rows: sum(map(sum, rows)))
        payload_bytes = sum(map(sum, table))
        counts = (layout.numel, payload_bytes, len(table[0]), len(table))
        return ExchangeWork(*counts, self._codec, num_sites, self._is_gathered, is_compiled=self._is_compiled)
