"""How often may somebody ask: token buckets for each key, its network and all together, in bounded memory; and how long
whoever brought nothing waits until it may come again.

Pure bookkeeping.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import PeerId

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
        due = [bucket for bucket, _ in self._due(key, network, self._clock())]
        if any(bucket.left < cost for bucket in due):
            return False
        for bucket in due:
            bucket.left -= cost
        return True

    def owe(self, key: Hashable, cost: float, wait_s_max: float, *, network: str = "") -> float:
        """Take `cost` from all of these whether it is there or not: what was done cannot be undone. Seconds until
        none owes anything; none ever owes more than it is given within `wait_s_max`."""
        now, wait_s = self._clock(), 0.0
        for bucket, rate in self._due(key, network, now):
            bucket.left = max(bucket.left - cost, -wait_s_max * rate.per_s)
            wait_s = max(wait_s, -bucket.left / rate.per_s)
        return wait_s

    def _due(self, key: Hashable, network: str, now: float) -> list[tuple[_Bucket, Rate]]:
        due = [(self._of(self._buckets, key, self._each, now), self._each)]
        if self._network is not None and network:
            due.append((self._of(self._networks, network, self._network, now), self._network))
        if self._total is not None:
            _refill(self._all, self._total, now)
            due.append((self._all, self._total))
        return due

    def _of(self, buckets: OrderedDict[Hashable, _Bucket], key: Hashable, rate: Rate, now: float) -> _Bucket:
        bucket = buckets.get(key) or buckets.setdefault(key, _Bucket(rate.burst, now))
        buckets.move_to_end(key)
        while len(buckets) > self._keys_max:
            buckets.popitem(last=False)
        _refill(bucket, rate, now)
        return bucket


EMPTY_EACH: Final = Rate(per_s=32.0, burst=2048.0)
"""Of exchanges that brought nothing: each costs about a thousandth of a second of our processor."""
EMPTY_NETWORK: Final = Rate(per_s=64.0, burst=4096.0)
EMPTY_TOTAL: Final = Rate(per_s=128.0, burst=8192.0)
EMPTY_WAIT_S_MAX: Final = 5.0
"""Whoever offers waits ten seconds for an answer, and shall not take us for silent."""
PIECE_COST: Final = 0.25
"""Of a piece that is not needed, as a part of such an exchange."""
CREDIT_EACH: Final = 4.0
"""What an exchange that brought something pays for: other lanes of its payload, and its offers in later attempts."""
CREDIT_MAX: Final = 8192.0


@dataclass(slots=True)
class ExchangeYield:
    """What one exchange has brought so far."""

    is_wanted: bool = False
    """A piece of it was needed here."""
    num_unwanted: int = 0
    """Pieces that were not, and that nobody has paid for yet."""


@dataclass(slots=True)
class _Account:
    credit: float = 0.0
    waits_until: float = 0.0


class EmptyExchanges:
    """Those that brought nothing that was wanted: refused, here already, or broken off before a piece was whole.

    An honest peer gets there too, by a lossy link or a new attempt, so nothing is held against it and nothing refused:
    its next exchange waits. Who brings what is wanted pays with that, and depends on no bucket that others empty.
    """

    def __init__(self, clock: Callable[[], float], *, keys_max: int = KEYS_MAX) -> None:
        self._clock = clock
        self._budget: Budget | None = None
        self._keys_max = keys_max
        self._accounts: OrderedDict[PeerId, _Account] = OrderedDict()

    def wait_s(self, peer: PeerId) -> float:
        """So long the next exchange of this peer waits; it is asked once for each."""
        account = self._accounts.get(peer)
        return max(0.0, account.waits_until - self._clock()) if account is not None else 0.0

    def pay(self, peer: PeerId, network: str, brought: ExchangeYield, *, is_over: bool = True) -> None:
        """An exchange of `peer` is over, or has got this far."""
        account = self._accounts.get(peer) or self._accounts.setdefault(peer, _Account())
        self._accounts.move_to_end(peer)
        while len(self._accounts) > self._keys_max:
            self._accounts.popitem(last=False)
        cost, brought.num_unwanted = PIECE_COST * brought.num_unwanted, 0
        if is_over and brought.is_wanted:
            account.credit = min(CREDIT_MAX, account.credit + CREDIT_EACH)
        elif is_over:
            cost += 1.0
        by_credit = min(cost, account.credit)
        account.credit -= by_credit
        if cost > by_credit:
            self._owe(account, peer, network, cost - by_credit)

    def _owe(self, account: _Account, peer: PeerId, network: str, cost: float) -> None:
        if self._budget is None:  # the clock of an event loop tells nothing before it runs
            self._budget = Budget(self._clock, each=EMPTY_EACH, network=EMPTY_NETWORK, total=EMPTY_TOTAL)
        wait_s = self._budget.owe(peer, cost, EMPTY_WAIT_S_MAX, network=network)
        account.waits_until = max(account.waits_until, self._clock() + wait_s)


def _refill(bucket: _Bucket, rate: Rate, now: float) -> None:
    bucket.left = min(rate.burst, bucket.left + (now - bucket.since) * rate.per_s)
    bucket.since = now
