"""Who is told all that was decided, and when: once in each of its lives, within a budget. M5.7."""

from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery.decisions import TELL_ALL, TOLD_MAX, GreetedPeers

A, B = PeerId("a"), PeerId("b")


class Book:
    """With a clock that stands still unless it is put forward, and lives that change when they are told to."""

    def __init__(self) -> None:
        self.now, self.num_news = 0.0, 0
        self.lives: dict[PeerId, int] = {A: 1, B: 1}
        self.told = GreetedPeers(lambda: self.now)
        self.told.incarnation_of = lambda peer: self.lives.get(peer, 0)

    def hello(self, peer: PeerId = A) -> list[PeerId]:
        self.told.greet(peer, self.num_news)
        return self.told.take_due(self.num_news)


def test_who_says_hello_again_has_heard_all() -> None:
    it = Book()
    assert [it.hello() for _ in range(5)] == [[A], [], [], [], []]
    assert it.hello(B) == [B]


def test_who_was_out_of_touch_hears_the_news_when_it_comes_back() -> None:
    it = Book()
    it.hello()
    it.num_news += 1
    assert it.told.take_due(it.num_news) == [], "who is in touch hears of them as they come"
    assert it.hello() == [A]


def test_who_started_again_is_told_though_its_record_comes_later_than_its_hello() -> None:
    it = Book()
    it.hello()
    assert it.hello() == []
    it.lives[A] += 1
    it.told.look()
    assert it.told.take_due(0) == [A]
    it.told.look()
    assert it.hello() == it.told.take_due(0) == []


def test_what_may_not_have_come_is_told_again() -> None:
    it = Book()
    it.hello()
    it.told.lose(A)
    assert it.hello() == [A]


def test_lives_without_end_cost_no_more_than_the_budget_and_the_last_one_is_told() -> None:
    it = Book()
    burst = int(TELL_ALL.burst)
    found = 0
    for _ in range(100):
        it.lives[A] += 1
        found += len(it.hello())
    assert found == burst
    assert it.hello(B) == [B], "others do not wait for it"
    it.now += 1 / TELL_ALL.per_s
    assert it.told.take_due(0) == [A], "without another hello"
    assert it.told.take_due(0) == []


def test_ten_thousand_peers_need_no_more_memory_than_a_thousand() -> None:
    it = Book()
    for number in range(10_000):
        it.hello(PeerId(f"peer {number}"))
    assert len(it.told._told) == TOLD_MAX
    for number in range(10_000):
        it.told.greet(PeerId(f"other {number}"), 0)
    assert len(it.told._owed) == TOLD_MAX
