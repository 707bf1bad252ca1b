"""How much longer a round trip is while payloads are sent: `python -m tests.bench.links.added_delay`.

`[--mbits 20,100] [--rtts-ms 50] [--mib 16] [--mtu 1500]`: two sites on the test internet, whose upload queue holds
200 ms. `added` is the round trip of a byte on another connection during the transfer less that on the idle link,
milliseconds, `p90` its 90th percentile; `plain` that beside 16 TCP connections that do nothing else. With jumbo packets
it is higher on slow links: each connection has four packets under way at least.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.bench import end_when_told
from tests.bench.links.data_plane import PLAIN, Peer, transfer
from tests.harness.internet.conditions import rtt
from tests.harness.internet.network import Internet
from tests.harness.internet.probes import bulk_bytes_per_s, echo

PREFIX = f"ch{os.getpid() % 10000}ad"
SEGMENT_KIB = 1024
BEGIN_S = 0.3
"""What is measured is the link in use, not its first packets."""
PAUSE_S = 0.01
IDLE_TRIPS = 9
Trip = Callable[[], float]


def beside(work: Callable[[], float], trip: Trip) -> tuple[float, list[float]]:
    """What the work returns, and round trips meanwhile."""
    found: list[float] = []
    result: list[float] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    time.sleep(BEGIN_S)
    while thread.is_alive():
        found.append(trip())
        time.sleep(PAUSE_S)
    thread.join()
    return result[0], found


def shown(trips_s: list[float], idle_s: float) -> dict[str, float]:
    """Milliseconds above those of the idle link."""
    p90 = sorted(trips_s)[int(0.9 * len(trips_s))]
    return {"added ms": round(1000 * (statistics.median(trips_s) - idle_s)), "p90 ms": round(1000 * (p90 - idle_s))}


def row(mbit: float, rtt_s: float, mib: int, mtu: int) -> dict[str, object]:
    """One link, on which everything is new."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        internet = stack.enter_context(Internet(PREFIX, "ab", rtt(rtt_s), mtu))
        sender, receiver = (stack.enter_context(Peer(internet, name, folder)) for name in "ab")
        sender.order(meet=receiver.address)
        for name in "ab":
            internet.shape(name, mbit)
        trip = stack.enter_context(echo(internet, "a", "b"))
        idle_s = statistics.median(trip() for _ in range(IDLE_TRIPS))
        speed, trips = beside(lambda: transfer(sender, receiver, mib, "data", SEGMENT_KIB).mb_per_s, trip)
        plain, plain_trips = beside(lambda: 1e-6 * bulk_bytes_per_s(internet, "a", "b", mib, PLAIN), trip)
    return {
        "link": f"{mbit:g} Mbit/s, {1000 * rtt_s:g} ms",
        "idle ms": round(1000 * idle_s),
        "data MB/s": round(speed, 1),
        **shown(trips, idle_s),
        "plain MB/s": round(plain, 1),
        **{f"plain {name}": value for name, value in shown(plain_trips, idle_s).items()},
        "load_1min": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbits", default="20,100")
    parser.add_argument("--rtts-ms", default="50")
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--mtu", type=int, default=1500)
    options = parser.parse_args()
    for mbit in map(float, options.mbits.split(",")):
        for milliseconds in map(float, options.rtts_ms.split(",")):
            print(json.dumps(row(mbit, milliseconds / 1000, options.mib, options.mtu)), flush=True)


if __name__ == "__main__":
    end_when_told()
    main()
