"""How often may somebody ask: token buckets for each key, its network and all together, in bounded memory.

Pure bookkeeping.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

KEYS_MAX: Final = 1024
"""A key that is forgotten begins with a full bucket again: the bucket of all bounds what that is good for."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a bucket gives: `per_s` on average, `burst` at once."""

    per_s: float
    burst: float


@dataclass(slots=True)
class _Bucket:
    left: float
    since: float


class Budget:
    """Asked before anything is done for somebody; says whether it may be done now."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        each: Rate,
        total: Rate | None = None,
        network: Rate | None = None,
        keys_max: int = KEYS_MAX,
    ) -> None:
        """`total`, `network`: for all together and for each network; None: no such limit. `keys_max`: of each kind."""
        self._clock = clock
        self._each = each
        self._total = total
        self._network = network
        self._keys_max = keys_max
        self._all = _Bucket(total.burst if total is not None else 0.0, clock())
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._networks: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def take(self, key: Hashable, cost: float = 1.0, *, network: str = "") -> bool:
        """Take `cost` from the buckets of `key`, of its network (unless that is empty) and of all, or from none."""
        now = self._clock()
        due = [self._of(self._buckets, key, self._each, now)]
        if self._network is not None and network:
            due.append(self._of(self._networks, network, self._network, now))
        if self._total is not None:
            _refill(self._all, self._total, now)
            due.append(self._all)
        if any(bucket.left < cost for bucket in due):
            return False
        for bucket in due:
            bucket.left -= cost
        return True

    def _of(self, buckets: OrderedDict[Hashable, _Bucket], key: Hashable, rate: Rate, now: float) -> _Bucket:
        bucket = buckets.get(key) or buckets.setdefault(key, _Bucket(rate.burst, now))
        buckets.move_to_end(key)
        while len(buckets) > self._keys_max:
            buckets.popitem(last=False)
        _refill(bucket, rate, now)
        return bucket


def _refill(bucket: _Bucket, rate: Rate, now: float) -> None:
    bucket.left = min(rate.burst, bucket.left + (now - bucket.since) * rate.per_s)
    bucket.since = now
