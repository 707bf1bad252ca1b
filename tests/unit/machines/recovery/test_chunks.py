"""Who is asked for which chunk: fast sources give more, late ones are helped out, liars and the dead are left."""

from hypothesis import given, settings, strategies as st

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery.chunks import ChunkPool
from dilocoxd.machines.recovery.interface.limits import RecoveryLimits

A, B, C = PeerId("A"), PeerId("B"), PeerId("C")
LIMITS = RecoveryLimits()


def run(pool: ChunkPool, seconds: dict[PeerId, float]) -> float:
    """Each source takes its time for a chunk, one after the other; when the last one has come."""
    now, free_at = 0.0, dict.fromkeys(seconds, 0.0)
    running: list[tuple[float, PeerId, int]] = []
    while not pool.is_complete:
        for peer, number in pool.ask(Monotonic(now)):
            free_at[peer] = max(free_at[peer], now) + seconds[peer]
            running.append((free_at[peer], peer, number))
        running.sort()
        at, peer, number = running[0]
        deadline = pool.next_deadline()
        if deadline is not None and deadline < at:
            now = deadline
            continue
        now = at
        others = pool.came(peer, number, Monotonic(now))
        running = [item for item in running[1:] if not (item[2] == number and item[1] in others)]
    return now


def test_fast_sources_give_more_and_nobody_idles() -> None:
    pool = ChunkPool((100,) * 60, (A, B), LIMITS)
    took = run(pool, {A: 1.0, B: 3.0})
    given = {peer: source.num_given for peer, source in pool.sources.items()}
    assert given[A] + given[B] == 60 and given[A] > 2 * given[B]
    assert took <= 60 / (1 + 1 / 3) + 4, "both links are used to the end"


def test_the_short_ends_of_files_come_last() -> None:
    """Begun in the middle, they leave a whole chunk for the end, which one source gives while the others are idle."""
    pool = ChunkPool((100, 40, 100, 100, 30), (A,), RecoveryLimits(window=1), present=(2,))
    order = []
    while not pool.is_complete:
        [(peer, number)] = pool.ask(Monotonic(0.0))
        order.append(number)
        pool.came(peer, number, Monotonic(1.0))
    assert order == [0, 3, 1, 4]


def test_window_bounds_what_one_source_is_asked_for_at_a_time() -> None:
    pool = ChunkPool((100,) * 9, (A, B), LIMITS)
    assert [peer for peer, _ in pool.ask(Monotonic(0.0))] == [A, B, A, B]
    pool.failed(A, 0, "broke", is_final=False)
    assert pool.sources[A].window == 1
    assert pool.ask(Monotonic(1.0)) == []
    pool.came(A, 2, Monotonic(2.0))
    assert pool.sources[A].window == LIMITS.window
    assert pool.ask(Monotonic(2.0)) == [(A, 0), (A, 4)], "the chunk that failed comes first"


def test_chunk_of_a_silent_source_is_asked_of_an_idle_one_once_it_is_late() -> None:
    pool = ChunkPool((100,) * 2, (A, B), RecoveryLimits(window=1))
    assert pool.ask(Monotonic(0.0)) == [(A, 0), (B, 1)]
    assert pool.came(B, 1, Monotonic(2.0)) == ()
    assert pool.ask(Monotonic(2.0)) == []
    assert pool.next_deadline() == 2.0 * LIMITS.late_factor
    assert pool.ask(Monotonic(3.0)) == [(B, 0)]
    assert pool.came(B, 0, Monotonic(4.0)) == (A,), "what the silent one owes is cancelled"
    assert pool.is_complete


def test_source_that_has_given_nothing_yet_helps_out_too() -> None:
    pool = ChunkPool((100,), (A, B), LIMITS)
    assert pool.ask(Monotonic(0.0)) == [(A, 0)]
    assert pool.next_deadline() == LIMITS.late_first_s
    assert pool.ask(Monotonic(LIMITS.late_first_s)) == [(B, 0)]


def test_source_of_a_wrong_chunk_is_dropped_and_named() -> None:
    pool = ChunkPool((100,) * 3, (A, B), LIMITS)
    pool.ask(Monotonic(0.0))
    pool.failed(A, 0, "chunk 0 is wrong", is_final=True)
    assert pool.sources[A].is_dropped
    assert all(peer == B for peer, _ in pool.ask(Monotonic(1.0)))
    assert not pool.is_hopeless
    pool.failed(B, 1, "gone", is_final=True)
    assert pool.is_hopeless
    assert "3 of 3 chunks missing: A: chunk 0 is wrong; B: gone" in pool.problem


def test_chunks_on_disk_are_not_asked_for_again() -> None:
    pool = ChunkPool((100,) * 5, (A,), LIMITS, present=(0, 1, 3))
    assert pool.ask(Monotonic(0.0)) == [(A, 2), (A, 4)]
    assert ChunkPool((100,) * 5, (), LIMITS, present=range(5)).is_complete


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["came", "failed", "final", "wait"]), max_size=200),
    st.integers(1, 3), st.integers(1, 12), st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_chunk_comes_or_every_source_is_gone(actions: list[str], peers: int, chunks: int, rng: object) -> None:
    names = (A, B, C)[:peers]
    pool = ChunkPool((100,) * chunks, names, LIMITS)
    asked: set[tuple[PeerId, int]] = set()
    now = Monotonic(0.0)
    actions = [*actions, *["came"] * 40]
    for action in actions:
        if pool.is_complete or pool.is_hopeless:
            break
        now = Monotonic(now + 1.0)
        for question in pool.ask(now):
            assert question not in asked, "asked twice at a time"
            asked.add(question)
        assert all(len(source.asked) <= LIMITS.window for source in pool.sources.values())
        if action == "wait" or not asked:
            continue
        peer, number = sorted(asked)[rng.randrange(len(asked))]  # type: ignore[attr-defined]
        asked.discard((peer, number))
        if action == "came":
            asked -= {(other, number) for other in pool.came(peer, number, now)}
        else:
            pool.failed(peer, number, "broke", is_final=action == "final")
    assert pool.is_complete or pool.is_hopeless
