"""Exchanges that bring nothing that is wanted: beyond a budget the next one waits, and whoever brings something never
does. S10.7.
"""

from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.budget import (
    CREDIT_EACH,
    CREDIT_MAX,
    EMPTY_EACH,
    EMPTY_NETWORK,
    EMPTY_TOTAL,
    EMPTY_WAIT_S_MAX,
    KEYS_MAX,
    EmptyExchanges,
    ExchangeYield,
)

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
BURST = int(EMPTY_EACH.burst)


class Book:
    """With a clock that stands still unless it is put forward."""

    def __init__(self) -> None:
        self.now = 100.0
        self.book = EmptyExchanges(lambda: self.now)

    def empty(self, number: int, peer: PeerId = A, network: str = "n") -> None:
        for _ in range(number):
            self.book.pay(peer, network, ExchangeYield())

    def useful(self, number: int, peer: PeerId = A, network: str = "n") -> None:
        for _ in range(number):
            self.book.pay(peer, network, ExchangeYield(is_wanted=True))


def test_burst_is_free_and_what_is_beyond_waits_for_its_rate() -> None:
    it = Book()
    it.empty(BURST)
    assert it.book.wait_s(A) == 0
    it.empty(8)
    assert it.book.wait_s(A) == 8 / EMPTY_EACH.per_s
    assert it.book.wait_s(B) == 0, "who brought nothing in vain does not wait for others"
    it.now += 8 / EMPTY_EACH.per_s
    assert it.book.wait_s(A) == 0


def test_who_brings_what_is_wanted_never_waits() -> None:
    it = Book()
    it.empty(BURST + 64, B)
    for _ in range(10 * BURST):
        it.useful(1)
        it.empty(int(CREDIT_EACH))
        assert it.book.wait_s(A) == 0
    assert it.book.wait_s(B) > 0


def test_credit_for_what_was_brought_is_bounded() -> None:
    it = Book()
    it.useful(int(CREDIT_MAX))
    it.empty(int(CREDIT_MAX) + BURST)
    assert it.book.wait_s(A) == 0
    it.empty(1)
    assert it.book.wait_s(A) > 0


def test_network_and_all_together_have_their_part() -> None:
    it = Book()
    for number in range(int(EMPTY_NETWORK.burst / EMPTY_EACH.burst)):
        it.empty(BURST, PeerId(f"near {number}"))
    it.empty(1, C, "n")
    assert it.book.wait_s(C) == 1 / EMPTY_NETWORK.per_s
    it = Book()
    for number in range(int(EMPTY_TOTAL.burst / EMPTY_EACH.burst)):
        it.empty(BURST, PeerId(f"far {number}"), f"network {number}")
    it.useful(1, B, "")
    it.empty(1, B, "")
    it.empty(1, C, "")
    assert (it.book.wait_s(B), it.book.wait_s(C)) == (0, 1 / EMPTY_TOTAL.per_s), "credit needs nothing of the others'"


def test_nobody_waits_so_long_that_it_takes_us_for_silent() -> None:
    it = Book()
    it.empty(100 * BURST)
    assert it.book.wait_s(A) == EMPTY_WAIT_S_MAX
    it.now += EMPTY_WAIT_S_MAX
    assert it.book.wait_s(A) == 0


def test_pieces_that_nobody_needs_count_for_a_part_each() -> None:
    it = Book()
    it.empty(BURST)
    it.book.pay(A, "n", brought := ExchangeYield(is_wanted=True, num_unwanted=4), is_over=False)
    assert it.book.wait_s(A) == 1 / EMPTY_EACH.per_s and not brought.num_unwanted
    it = Book()
    it.empty(BURST)
    it.book.pay(A, "n", ExchangeYield(num_unwanted=4))
    assert it.book.wait_s(A) == 2 / EMPTY_EACH.per_s


def test_ten_thousand_peers_need_no_more_memory_than_a_thousand() -> None:
    it = Book()
    for number in range(10_000):
        it.empty(1, PeerId(f"peer {number}"))
    assert len(it.book._accounts) == KEYS_MAX
