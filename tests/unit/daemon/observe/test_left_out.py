"""The alert `left_out`: rounds that had a place for this site went on without it, while it trained."""

from tests.unit.daemon.observe.test_alert_rules import World


def test_left_out_after_five_entries_without_us() -> None:
    world = World()
    world.look()
    for _ in range(4):
        world.commit(is_own=False)
        assert world.look() == set()
    world.commit(is_own=False)
    assert world.look() == {"left_out"}
    world.commit(is_own=True)
    assert world.look() == set()


def test_site_on_probation_that_waits_for_a_place_is_not_left_out() -> None:
    """No faster link would help it; `dilocoxd status` says what it waits for."""
    world = World()
    world.change(place_wait="2 such sites for 1 place in a round, who took part most often first")
    world.look()
    for _ in range(9):
        world.commit(is_own=False)
        assert world.look() == set()
    world.change(place_wait="")
    for _ in range(5):
        assert world.look() == set()
        world.commit(is_own=False)
    assert world.look() == {"left_out"}, "there is a place now"


def test_what_a_newcomer_caught_up_with_was_not_missed() -> None:
    world = World()
    world.change(state="catching_up", height=0)
    world.look()
    world.change(state="training", height=158)
    assert world.look() == set()
    for _ in range(4):
        world.commit(is_own=False)
        assert world.look() == set()
    world.commit(is_own=False)
    assert world.look() == {"left_out"}


def test_site_whose_trainers_prepare_the_text_is_not_left_out() -> None:
    world = World()
    world.change(phase__phase=None)
    for _ in range(9):
        world.commit(is_own=False)
        assert world.look() == set()
    world.change(phase__phase=1)
    assert world.look() == set(), "what went by meanwhile was not missed"
