"""Predicted beside measured exchange time: from the rounds before, by the formulas of the planner."""

import pytest

from dilocoxd.cli.screens.status import exchange
from dilocoxd.daemon.observe.forecast import Exchanged, ExchangeForecast
from dilocoxd.daemon.site.interface import SiteLayout
from dilocoxd.machines.exchange.cost import FIXED_S, bytes_each_way

PAYLOAD = 10_000_000
LAYOUT = SiteLayout(numel=20_000_000, payload_bytes={0: ((6_000_000, 4_000_000),)}, inbox_slots=4)
SITES = 4
SENT = round(bytes_each_way(PAYLOAD, SITES))


def test_the_second_exchange_is_predicted_from_the_first() -> None:
    forecast = ExchangeForecast("int4", lambda: LAYOUT)
    forecast.finished(Exchanged(SITES, SENT, 3.0, 3.5))
    assert forecast.newest is None
    forecast.finished(Exchanged(SITES, SENT, 6.0, 6.5))
    assert forecast.newest is not None
    assert forecast.newest.measured_s == 6.5
    assert forecast.newest.predicted_s == pytest.approx(3.0 + FIXED_S, abs=0.1)


def test_speed_follows_the_newest_rounds() -> None:
    forecast = ExchangeForecast("int4", lambda: LAYOUT)
    for _ in range(20):
        forecast.finished(Exchanged(SITES, SENT, 6.0, 6.5))
    assert forecast.newest is not None
    assert forecast.newest.predicted_s == pytest.approx(6.0 + FIXED_S, abs=0.1)


@pytest.mark.parametrize(
    "lesson", [Exchanged(1, 0, 0.0, 0.0), Exchanged(SITES, 0, 0.0, 1.0), Exchanged(SITES, 5, 0.0, 1.0)]
)
def test_exchanges_that_sent_nothing_teach_nothing(lesson: Exchanged) -> None:
    forecast = ExchangeForecast("int4", lambda: LAYOUT)
    for _ in range(3):
        forecast.finished(lesson)
    assert forecast.newest is None
    assert exchange(forecast.newest) == ""


def test_nothing_is_predicted_before_the_model_is_known() -> None:
    forecast = ExchangeForecast("int4", lambda: None)
    forecast.finished(Exchanged(SITES, SENT, 3.0, 3.5))
    forecast.finished(Exchanged(SITES, SENT, 3.0, 3.5))
    assert forecast.newest is None
