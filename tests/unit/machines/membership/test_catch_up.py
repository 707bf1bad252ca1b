"""When a starting peer has caught up enough to train."""

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.machines.membership.catch_up import MEET_PATIENCE_S, CatchUp

NOBODY: frozenset[PeerId] = frozenset()
LIAR = PeerId("liar")


def stand(*heights: int) -> dict[PeerId, int]:
    return {PeerId(f"p{index}"): height for index, height in enumerate(heights)}


def test_it_waits_until_it_stands_where_the_best_stood() -> None:
    state = CatchUp(is_founder=False)
    assert not state.may_begin(0, stand(3, 7), NOBODY, 0.0)
    assert not state.may_begin(5, stand(3, 8), NOBODY, 1.0)
    assert state.may_begin(8, stand(3, 8), NOBODY, 2.0)


def test_nobody_is_ahead() -> None:
    assert CatchUp(is_founder=True).may_begin(0, stand(), NOBODY, 0.0)
    assert CatchUp(is_founder=False).may_begin(0, stand(0), NOBODY, 0.0)
    assert CatchUp(is_founder=False).may_begin(4, stand(2, 4), NOBODY, 0.0)


def test_newcomer_whose_donors_fall_silent_never_begins_a_second_run() -> None:
    state = CatchUp(is_founder=False)
    assert not state.may_begin(0, stand(142), NOBODY, 0.0)
    assert not state.may_begin(0, stand(), NOBODY, 1.0)
    assert not state.may_begin(0, stand(0), NOBODY, 1000.0)
    assert state.target == 142
    assert state.may_begin(142, stand(142), NOBODY, 1001.0)


def test_l18_who_has_no_entries_and_was_told_of_others_never_begins_alone() -> None:
    state = CatchUp(is_founder=False)
    assert not state.may_begin(0, stand(), NOBODY, 0.0), "who answered first is gone already"
    assert not state.may_begin(0, stand(), NOBODY, 1000.0)
    assert state.may_begin(0, stand(0), NOBODY, 1001.0), "somebody else begins as well"


@pytest.mark.parametrize("is_founder", [True, False])
def test_who_has_lost_its_entries_does_not_begin_the_run_again(is_founder: bool) -> None:
    state = CatchUp(is_founder=is_founder, had_entries=True)
    assert not state.may_begin(0, stand(), NOBODY, 0.0)
    assert not state.may_begin(0, stand(0, 0), NOBODY, 1000.0), "they have lost theirs as well"
    assert not state.may_begin(0, stand(7), NOBODY, 1001.0)
    assert state.may_begin(7, stand(7), NOBODY, 1002.0)


def test_peer_with_entries_of_its_own_goes_on_alone_after_a_while() -> None:
    state = CatchUp(is_founder=False)
    assert not state.may_begin(50, stand(60), NOBODY, 0.0)
    assert not state.may_begin(50, stand(40), NOBODY, 1.0)
    assert not state.may_begin(50, stand(60), NOBODY, 10.0), "they are back: it counts anew"
    assert not state.may_begin(50, stand(), NOBODY, 11.0)
    assert state.may_begin(50, stand(), NOBODY, 11.1 + MEET_PATIENCE_S)


def test_height_that_recovery_could_not_confirm_keeps_nobody_from_training() -> None:
    state = CatchUp(is_founder=False)
    claims = {LIAR: 1_000_000, **stand(7)}
    assert not state.may_begin(0, claims, NOBODY, 0.0)
    assert not state.may_begin(0, claims, frozenset({LIAR}), 1.0), "an honest peer is ahead as well"
    assert state.target == 7
    assert state.may_begin(7, claims, frozenset({LIAR}), 2.0)


def test_newcomer_beside_liars_alone_begins_no_second_run_but_the_founder_goes_on() -> None:
    claims, liars = {LIAR: 1_000_000}, frozenset({LIAR})
    state = CatchUp(is_founder=False)
    assert not state.may_begin(0, claims, liars, 0.0)
    assert not state.may_begin(0, claims, liars, 1000.0)
    assert state.may_begin(0, {**claims, **stand(0)}, liars, 1001.0), "somebody else begins as well"
    assert CatchUp(is_founder=True).may_begin(0, claims, liars, 0.0)
    assert CatchUp(is_founder=False).may_begin(3, claims, liars, 0.0)
