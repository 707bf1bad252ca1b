"""A state that never was, in a branch with true ones behind it: replay refuses it, a snapshot skips it."""

from dilocoxd.machines.recovery import interface as r
from tests.unit.machines.recovery.recovery_world import Donor, World, grown

COMMON = grown([], 4, b"common")
FALSE_AT = 6
BRANCH = grown(COMMON, 20, b"x", lies_at=FALSE_AT)
LONGER = grown(BRANCH, 4, b"x")
TIP = 22
"""Round of the newest snapshot."""


def _taken(own: int, *donors: Donor) -> World:
    world = World(BRANCH[:own], {name: donor for name, donor in zip("ABC", donors, strict=False)})
    world.run()
    return world


def test_branch_is_refused_where_it_is_replayed_and_what_was_true_of_it_stays() -> None:
    world = _taken(len(COMMON), Donor(BRANCH))
    assert world.log == BRANCH[:FALSE_AT]
    assert world.done is not None and world.done.unconfirmed == ("A",)


def test_snapshot_behind_it_is_taken_and_whoever_took_it_has_the_same_bits_and_can_give_it() -> None:
    first = _taken(len(COMMON), Donor(BRANCH, 20, (TIP,)))
    assert first.log == BRANCH and first.digest == first.digest_of(BRANCH)
    second = _taken(0, Donor(first.log, 20, (TIP,)))
    assert second.log == BRANCH and second.digest == first.digest


def test_who_refused_it_takes_it_once_a_snapshot_skips_the_state() -> None:
    refused = _taken(FALSE_AT, Donor(BRANCH))
    assert refused.log == BRANCH[:FALSE_AT], "nobody has a snapshot yet"
    later = _taken(FALSE_AT, Donor(LONGER, 20, (TIP,)))
    assert later.log == LONGER
    assert len(later.questions(r.AskPayload)) == len(LONGER) - TIP, "those behind the snapshot"
