"""A loop that comes back late is reported with what it was doing."""

import asyncio
import time

from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.site import LAG_ALERT_S, SiteHistory
from dilocoxd.daemon.process.loop_watch import watch_loop_lag
from dilocoxd.daemon.site.interface import LoopLagged
from dilocoxd.daemon.workers.kills import KillReader
from dilocoxd.ids import UnixTime
from dilocoxd.telemetry.events import EventLog

WAIT_S = 60.0


def stand_still() -> None:
    time.sleep(0.3)


async def test_blocked_loop_is_reported_with_the_calls_that_blocked_it() -> None:
    lags: list[tuple[float, str]] = []

    async with asyncio.TaskGroup() as group:
        watch = group.create_task(
            watch_loop_lag(lambda *lag: lags.append(lag), interval_s=0.01, lag_max_s=0.05), name="watch"
        )
        async with asyncio.timeout(WAIT_S):
            while not any("stand_still" in doing for _, doing in lags):
                await asyncio.sleep(0.02)
                stand_still()
        watch.cancel()
    seconds, doing = next(lag for lag in lags if "stand_still" in lag[1])
    assert seconds > 0.05
    assert "test_loop_watch.py" in doing and doing.index("test_blocked_loop") < doing.index("stand_still")


def test_long_absence_is_an_alert_and_a_short_one_an_event() -> None:
    events = EventLog(None, level="error")
    seen: list[dict[str, object]] = []
    events.listen(seen.append)
    history = SiteHistory(Journal(lambda: UnixTime(0.0)), events, lambda: 0, lambda idle: None, KillReader(0))
    history.note(LoopLagged(1.5, "wheel.py:3 turn"))
    history.note(LoopLagged(LAG_ALERT_S, ""))
    assert [e["event"] for e in seen] == ["loop.blocked", "loop.blocked", "alert.raised"]
    assert seen[0]["doing"] == "wheel.py:3 turn"
    assert "5.0 s" in str(seen[2]["text"]) and "frozen" in str(seen[2]["text"])
