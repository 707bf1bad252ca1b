"""What the DHT answers: few keys at a time, and seldom, because hivemind works through a request on our event loop.

180,000 keys in one request of 4 MiB halted the daemon for seconds. An honest peer asks for one key, this run's or a
random one. Source: protocol/05-discovery.md, rule D9.
"""

from collections.abc import Callable
from typing import Any, Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.budget import Budget, Rate

KEYS_MAX: Final = 4
"""Keys of one request, whatever it asks."""
REQUEST_BYTES_MAX: Final = 64 * 1024
EACH: Final = Rate(per_s=4.0, burst=40.0)
TOTAL: Final = Rate(per_s=50.0, burst=400.0)


class DhtFence:
    """Judges every request of the DHT before hivemind sees it."""

    def __init__(self, clock: Callable[[], float], may_ask: Callable[[PeerId], bool]) -> None:
        """`may_ask`: who is answered at all."""
        self._may_ask = may_ask
        self._budget = Budget(clock, each=EACH, total=TOTAL)

    def check(self, peer: PeerId, request: Any) -> None:
        """`request`: any message of hivemind's dht_pb2. Raises WireError (not_allowed | busy | too_large)."""
        if not self._may_ask(peer):
            raise WireError("not_allowed", "the DHT answers members of the run that this site allows")
        if not self._budget.take(peer):
            raise WireError("busy", f"more than {EACH.per_s:g} DHT requests a second")
        num_keys = len(getattr(request, "keys", ()))
        if num_keys > KEYS_MAX:
            raise WireError("too_large", f"{num_keys} keys in one DHT request, at most {KEYS_MAX}")
        if request.ByteSize() > REQUEST_BYTES_MAX:
            raise WireError("too_large", f"DHT request of {request.ByteSize()} bytes, at most {REQUEST_BYTES_MAX}")
