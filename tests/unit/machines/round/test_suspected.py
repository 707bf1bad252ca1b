"""Who raises attempts alone: not followed, but where nothing could be done without it (R5.3 to R5.5)."""

from collections.abc import Set
from dataclasses import replace

from dilocoxd.ids import Attempt, Monotonic, PeerId
from dilocoxd.machines.peers.standing import SUSPICION_MAX
from dilocoxd.machines.round.gathering import gathered_at, look
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.outcomes import Waiting
from tests.unit.machines.round_world import LIMITS, ME, START, B, C, height_of, offer, process, ready, view

MAJORITY = replace(LIMITS, has_majority_quorum=True)
LATER = Attempt(3)


def with_suspected_b(*others: PeerId, recent: Set[PeerId] = frozenset(), is_majority: bool = True) -> Height:
    """B stands in a later attempt, where it has been alone once too often; the chain's entries name `recent`."""
    height = height_of(B, *others, limits=MAJORITY if is_majority else LIMITS)
    height.own.is_training = True
    height.chain = replace(height.chain, recent=(frozenset(recent),))
    for _ in range(SUSPICION_MAX + 1):
        height.book.raised(B)
    height.say(B, ready(B, attempt=LATER), START)
    return height


def is_followed(height: Height) -> bool:
    """Both rules at once: an attempt that is followed is one whose peer is waited for."""
    attempt = height.latest_attempt(height.attempt.index)
    assert (attempt == LATER) != height.is_suspected(B)
    assert (B in height.suspected()) == height.is_suspected(B) == height.is_left_out(B)
    return attempt == LATER


def test_suspected_peer_is_followed_only_where_a_majority_needs_it() -> None:
    assert not is_followed(with_suspected_b(recent={ME, B}, is_majority=False))
    assert is_followed(with_suspected_b(recent={ME, B}))
    assert not is_followed(with_suspected_b(C, recent={ME, B, C})), "we and C are a majority"
    assert not is_followed(with_suspected_b(C, recent={ME, C})), "B counts for no majority"
    assert is_followed(with_suspected_b(recent={ME, B, C})), "C is not there"
    assert not is_followed(with_suspected_b(recent={ME})), "alone we are a majority"


def test_suspected_peer_is_followed_where_others_do_not_train() -> None:
    height = with_suspected_b(C, recent={ME, B, C})
    height.book.see([view(B), replace(view(C), is_training=False)], height.chain, START)
    assert is_followed(height)
    height.say(C, ready(C), START)
    assert not is_followed(height), "C offers something all the same"


def test_majority_waits_without_a_suspected_peer_only_as_long_as_others_have_their_time() -> None:
    height = with_suspected_b(C, recent={ME, B, C})
    height.say(C, ready(), START)
    offer(height)
    now, found, looks = START, look(height, process(), START), 0
    while not is_followed(height):
        assert isinstance(found, Waiting) and found.until is not None and found.until > now, "else nobody looks again"
        now, looks = found.until, looks + 1
        found = look(height, process(), now)
    assert looks and now <= Monotonic(START + LIMITS.grace_max_s + LIMITS.progress_timeout_s)
    assert B not in gathered_at(height).contributions, "it is in another attempt: ours is left first"
